"""Cache a decoded file of facts with its hash, so that a command need not parse YAML again.

An entry's name is a hash of the file, the modules of its model and msgspec's version, and the entry begins with a hash
of its payload. An entry whose hash does not match is ignored. A failure to write an entry is no error.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from envcheck.matrix.facts import model

_DIGEST_BYTES: Final = 32
_MOST_ENTRIES: Final = 8
_Row = TypeVar("_Row")


def cached(raw: bytes, decode: Callable[[], _Row], row: type[_Row]) -> _Row:
    """Return the cached `row` of the YAML text `raw`; without one, call `decode` and cache its result."""
    entries = directory()
    if entries is None:
        return decode()
    name = _entry_name(raw, row)
    value = _read(entries / name, row)
    if value is None:
        value = decode()
        _write(entries, name, value)
    return value


def directory() -> Path | None:
    """Return the cache directory: `$XDG_CACHE_HOME/envcheck`, else `~/.cache/envcheck`; None without a home."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if base.is_absolute():
        return base / "envcheck"
    try:
        return Path.home() / ".cache" / "envcheck"
    except RuntimeError:
        return None


def _entry_name(raw: bytes, row: type) -> str:
    digest = hashlib.sha256(msgspec.__version__.encode())
    for module in {model.__name__: model, row.__module__: sys.modules[row.__module__]}.values():
        digest.update(Path(str(module.__file__)).read_bytes())
    digest.update(raw)
    return f"{row.__name__.lower()}-{digest.hexdigest()}.msgpack"


def _read(path: Path, row: type[_Row]) -> _Row | None:
    try:
        entry = path.read_bytes()
    except OSError:
        return None
    digest, payload = entry[:_DIGEST_BYTES], entry[_DIGEST_BYTES:]
    if hashlib.sha256(payload).digest() != digest:
        return None
    try:
        return msgspec.msgpack.decode(payload, type=row)
    except msgspec.MsgspecError:
        return None


def _write(parent: Path, name: str, value: object) -> None:
    import tempfile  # noqa: PLC0415 (a cached file is read without it, and it takes as long as reading does)

    payload = msgspec.msgpack.encode(value)
    with contextlib.suppress(OSError):
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _drop_old(parent, name.partition("-")[0])
        handle, temporary = tempfile.mkstemp(dir=parent, prefix=".facts-")
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(payload).digest() + payload)
        Path(temporary).replace(parent / name)


def _drop_old(parent: Path, kind: str) -> None:
    entries = sorted(parent.glob(f"{kind}-*.msgpack"), key=lambda entry: entry.stat().st_mtime, reverse=True)
    for entry in entries[_MOST_ENTRIES - 1 :]:
        entry.unlink(missing_ok=True)
