"""Keep the decoded matrix beside its hash, so that a command need not parse YAML again.

An entry is used only when the file, the model, msgspec and the entry itself all hash to what it says; anything else is
as if there were none. Failing to write it is no error.
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

from envcheck.matrix import model

_DIGEST: Final = 32
_KEPT: Final = 8


def through(raw: bytes, build: Callable[[], model.Matrix]) -> model.Matrix:
    """Return the matrix that `raw` decodes to: the cached one, or what `build` makes of it, then cached."""
    where = directory()
    if where is None:
        return build()
    name = _key(raw)
    found = _read(where / name)
    if found is not None:
        return found
    matrix = build()
    _write(where, name, matrix)
    return matrix


def directory() -> Path | None:
    """Return where entries are kept: `$XDG_CACHE_HOME/envcheck`, else `~/.cache/envcheck`; None without a home."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if base.is_absolute():
        return base / "envcheck"
    try:
        return Path.home() / ".cache" / "envcheck"
    except RuntimeError:
        return None


def _key(raw: bytes) -> str:
    digest = hashlib.sha256(msgspec.__version__.encode())
    digest.update(Path(model.__file__).read_bytes())
    digest.update(raw)
    return f"matrix-{digest.hexdigest()}.msgpack"


def _read(path: Path) -> model.Matrix | None:
    try:
        entry = path.read_bytes()
    except OSError:
        return None
    digest, payload = entry[:_DIGEST], entry[_DIGEST:]
    if hashlib.sha256(payload).digest() != digest:
        return None
    try:
        return msgspec.msgpack.decode(payload, type=model.Matrix)
    except msgspec.MsgspecError:
        return None


def _write(where: Path, name: str, matrix: model.Matrix) -> None:
    payload = msgspec.msgpack.encode(matrix)
    with contextlib.suppress(OSError):
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        _drop_old(where)
        handle, temporary = tempfile.mkstemp(dir=where, prefix=".matrix-")
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(payload).digest() + payload)
        Path(temporary).replace(where / name)


def _drop_old(where: Path) -> None:
    entries = sorted(where.glob("matrix-*.msgpack"), key=lambda entry: entry.stat().st_mtime, reverse=True)
    for entry in entries[_KEPT - 1 :]:
        entry.unlink(missing_ok=True)
