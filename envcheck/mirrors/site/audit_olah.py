"""olah's cache as it lies on disk (format 10): an entry is a directory with a header and blocks of the file.

meta.bin             sizes and the ETag; there is an entry as long as this file is there
meta.lock            held by whoever opens, makes or wipes the entry
blocks/block_N.bin   the file itself, in pieces of one size; chunks.crc holds what olah took, not what it should be
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
import struct
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from envcheck.mirrors.site.audit_disk import Unread, empty, fed, files, removed, unread

# magic, version, flags, header's size, block's size, file's size, compression, chunk's size, ETag's length, reserved.
_HEADER: Final = struct.Struct("<4sHHIQQBIH8s")
_MAGIC: Final = b"OLAH"
_VERSION: Final = 10
_LONGEST: Final = 1 << 17
_BLOCKS: Final = 1 << 17  # olah's own limit
_HOLD: Final = 10.0  # seconds; olah holds the lock of an entry while it opens it, no longer
_STEP: Final = 0.05
META: Final = "meta.bin"


@dataclasses.dataclass(frozen=True)
class Entry:
    """One cached file: its directory, its ETag as the upstream told it, and its length in bytes."""

    path: Path
    etag: str
    size: int
    block: int

    @property
    def blocks(self) -> list[Path]:
        """Return its pieces, in order; any of them may be absent."""
        count = -(-self.size // self.block)
        return [self.path / "blocks" / f"block_{number:08}.bin" for number in range(count)]


def entries(root: Path) -> Iterator[Entry | Unread]:
    """Yield every entry below olah's directory."""
    for path in files(root):
        if isinstance(path, Unread):
            yield path
        elif path.name == META:
            found = _entry(path)
            if found is not None:
                yield found


def _entry(path: Path) -> Entry | Unread | None:
    try:
        with path.open("rb") as file:
            head = file.read(_LONGEST)
    except FileNotFoundError:
        return None
    except OSError as error:
        return unread(path, error)
    if len(head) < _HEADER.size or not head.startswith(_MAGIC):
        return Unread(path, "no header of olah's", strange=True)
    _, version, _, length, block, size, packed, _, tag, _ = _HEADER.unpack_from(head)
    if version != _VERSION or packed:
        how = "compressed, which is not read" if version == _VERSION else f"in format {version}; this reads {_VERSION}"
        return Unread(path, f"olah has it {how}", strange=True)
    crc = int.from_bytes(head[length - 4 : length], "little")
    if length < _HEADER.size or not block or size > block * _BLOCKS or crc != zlib.crc32(head[: max(length - 4, 0)]):
        return Unread(path, "its header is damaged", strange=True)
    etag = head[_HEADER.size : _HEADER.size + tag].decode("latin-1")
    return Entry(path.parent, etag.removeprefix("W/").strip('"'), size, block)


def hashed(entry: Entry, hashers: Sequence[Any]) -> int:
    """Feed hashers with an entry's bytes, as many as there are in a row; return their number. Raise OSError."""
    at = 0
    for path in entry.blocks:
        wanted = min(entry.block, entry.size - at)
        try:
            had = fed(path, hashers, limit=wanted)
        except FileNotFoundError:
            return at
        at += had
        if had != wanted:
            return at
    return at


def purged(entry: Entry) -> tuple[tuple[str, ...], str]:
    """Wipe an entry as olah does itself: its lock held, its header first. Return what is gone, and what is not.

    Without its header there is no entry: if this process is killed here, olah wipes the rest and fetches anew.
    """
    try:
        lock = os.open(entry.path / "meta.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        return (), f"{entry.path} is still there: {unread(entry.path, error).why}"
    try:
        if not _held(lock):
            return (), f"{entry.path} is still there: it is in use"
        gone, still = removed([entry.path / META, entry.path / "chunks.crc", *entry.blocks])
    finally:
        os.close(lock)
    return gone, still


def _held(lock: int) -> bool:
    deadline = time.monotonic() + _HOLD
    while not _locked(lock):
        if time.monotonic() > deadline:
            return False
        time.sleep(_STEP)
    return True


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def rows(path: Path) -> list[Any]:
    """Return the files that an answer of the API, as olah keeps it, lists; raise OSError, or ValueError where none."""
    body = path.with_name(f"{path.name}.body")
    try:
        told = msgspec.json.decode(body.read_bytes())
    except msgspec.DecodeError as error:
        message = "no JSON"
        raise ValueError(message) from error
    if not isinstance(told, list):
        message = "no list of files"
        raise ValueError(message)  # noqa: TRY004 (of the answer, not of an argument)
    return told


def forgotten(answer: Path) -> tuple[tuple[str, ...], str]:
    """Remove an answer of the API: its head first, without which olah does not look for its body."""
    found = removed([answer, answer.with_name(f"{answer.name}.body")])
    empty(answer.parent)
    return found
