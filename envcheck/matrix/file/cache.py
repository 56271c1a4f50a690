"""Cache the decoded matrix with its hash, so that a command need not parse YAML again.

An entry's name is a hash of the file, the model and msgspec's version, and the entry begins with a hash of its payload.
An entry whose hash does not match is ignored. A failure to write an entry is no error.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from envcheck.matrix.facts import model

_DIGEST_BYTES: Final = 32
_MOST_ENTRIES: Final = 8


def cached(raw: bytes, decode: Callable[[], model.Matrix]) -> model.Matrix:
    """Return the cached matrix of the YAML text `raw`; without one, call `decode` and cache its result."""
    entries = directory()
    if entries is None:
        return decode()
    name = _entry_name(raw)
    matrix = _read(entries / name)
    if matrix is None:
        matrix = decode()
        _write(entries, name, matrix)
    return matrix


def directory() -> Path | None:
    """Return the cache directory: `$XDG_CACHE_HOME/envcheck`, else `~/.cache/envcheck`; None without a home."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if base.is_absolute():
        return base / "envcheck"
    try:
        return Path.home() / ".cache" / "envcheck"
    except RuntimeError:
        return None


def _entry_name(raw: bytes) -> str:
    digest = hashlib.sha256(msgspec.__version__.encode())
    digest.update(Path(model.__file__).read_bytes())
    digest.update(raw)
    return f"matrix-{digest.hexdigest()}.msgpack"


def _read(path: Path) -> model.Matrix | None:
    try:
        entry = path.read_bytes()
    except OSError:
        return None
    digest, payload = entry[:_DIGEST_BYTES], entry[_DIGEST_BYTES:]
    if hashlib.sha256(payload).digest() != digest:
        return None
    try:
        return msgspec.msgpack.decode(payload, type=model.Matrix)
    except msgspec.MsgspecError:
        return None


def _write(parent: Path, name: str, matrix: model.Matrix) -> None:
    payload = msgspec.msgpack.encode(matrix)
    with contextlib.suppress(OSError):
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _drop_old(parent)
        handle, temporary = tempfile.mkstemp(dir=parent, prefix=".matrix-")
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(payload).digest() + payload)
        Path(temporary).replace(parent / name)


def _drop_old(parent: Path) -> None:
    entries = sorted(parent.glob("matrix-*.msgpack"), key=lambda entry: entry.stat().st_mtime, reverse=True)
    for entry in entries[_MOST_ENTRIES - 1 :]:
        entry.unlink(missing_ok=True)
