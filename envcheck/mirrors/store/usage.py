"""The versions of a store as they are listed."""

from __future__ import annotations

import msgspec

from envcheck.mirrors.store import versions
from envcheck.mirrors.store.objects import Store


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One version as it is listed; `bytes` counts each object once."""

    number: int
    current: bool
    files: int
    wheels: int
    models: int
    bytes: int


def listed(store: Store) -> list[Version]:
    """Return every version, oldest first."""
    served = versions.current(store)
    return [_version(number, told, current=number == served) for number, told in versions.manifests(store).items()]


def _version(number: int, told: versions.Manifest, *, current: bool) -> Version:
    sizes = {file.sha256: file.size for file in told.files}
    return Version(
        number=number,
        current=current,
        files=len(told.files),
        wheels=len(told.contents.wheels),
        models=len(told.contents.models),
        bytes=sum(sizes.values()),
    )
