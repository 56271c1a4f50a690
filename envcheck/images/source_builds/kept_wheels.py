"""Wheels that were compiled here, in the store: found again by the key of their build."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, NamedTuple

from envcheck import safe_files
from envcheck.errors import UnavailableError
from envcheck.images.source_builds.recipe import ExtensionBuild
from envcheck.mirrors.store.objects import Store

_FOLDER: Final = "built"
_DIGEST_LENGTH: Final = 64


class KeptWheel(NamedTuple):
    """A wheel in the store: its file name and sha256."""

    name: str
    sha256: str


def find(store: Store, build: ExtensionBuild) -> KeptWheel | None:
    """Return the wheel of a build whose bytes still have their hash; None if there is none, or none that is intact."""
    try:
        record = json.loads(_record(store, build).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(record, dict) or record.get("key") != build.key:
        return None
    name, sha256 = record.get("name"), record.get("sha256")
    if not isinstance(name, str) or not isinstance(sha256, str) or len(sha256) != _DIGEST_LENGTH or "/" in name:
        return None
    if not store.sound(sha256):
        return None
    store.touch(sha256, name)
    return KeptWheel(name, sha256)


def keep(store: Store, build: ExtensionBuild, wheel: Path, sha256: str) -> KeptWheel:
    """Put a wheel that was compared with its promises into the store; its record is written last, and whole."""
    store.adopt(wheel, sha256)
    record = {"key": build.key, "what": build.what, "sdist": build.sdist.sha256, "name": wheel.name, "sha256": sha256}
    path = _record(store, build)
    path.parent.mkdir(parents=True, exist_ok=True)
    safe_files.replace(path, json.dumps(record, indent=1).encode() + b"\n")
    return KeptWheel(wheel.name, sha256)


def require_writable(store: Store) -> None:
    """Raise UnavailableError where the wheel could not be kept: better before an hour of compiling than after."""
    try:
        _record_folder(store).mkdir(parents=True, exist_ok=True)
        safe_files.put(_record_folder(store) / ".writable", b"", durable=False)
    except OSError as error:
        message = f"{store.root}: {error.strerror}; a wheel that is compiled is kept there"
        raise UnavailableError(message, fix="give a store that this user may write to with --store") from error


def _record_folder(store: Store) -> Path:
    return store.root / _FOLDER


def _record(store: Store, build: ExtensionBuild) -> Path:
    return _record_folder(store) / f"{build.key}.json"
