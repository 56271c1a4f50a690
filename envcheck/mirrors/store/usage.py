"""Summarise the versions of a store for `envcheck store df` and `store versions`."""

from __future__ import annotations

import msgspec

from envcheck.errors import PromiseError
from envcheck.mirrors.store import versions
from envcheck.mirrors.store.objects import Store


class VersionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One version. `bytes` counts each object once; `error` says why its manifest cannot be read."""

    number: int
    current: bool
    files: int
    wheels: int
    models: int
    bytes: int
    error: str | None = None


def list_versions(store: Store) -> list[VersionSummary]:
    """Return every version, oldest first, also those whose manifests cannot be read."""
    served, (readable, errors) = versions.current(store), versions.readable_manifests(store)
    summaries = [_summary(number, manifest, current=number == served) for number, manifest in readable.items()]
    summaries += [_unreadable(number, error, current=number == served) for number, error in errors.items()]
    return sorted(summaries, key=lambda version: version.number)


def _unreadable(number: int, error: PromiseError, *, current: bool) -> VersionSummary:
    return VersionSummary(number=number, current=current, files=0, wheels=0, models=0, bytes=0, error=str(error))


def _summary(number: int, manifest: versions.Manifest, *, current: bool) -> VersionSummary:
    sizes = {file.sha256: file.size for file in manifest.files}
    return VersionSummary(
        number=number,
        current=current,
        files=len(manifest.files),
        wheels=len(manifest.contents.wheels),
        models=len(manifest.contents.models),
        bytes=sum(sizes.values()),
    )
