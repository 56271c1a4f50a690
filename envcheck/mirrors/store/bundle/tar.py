"""Read and write a bundle's tar in its only form: regular files, without owner and time, all with the same rights.

The reader compares each header with the one that the writer would write, and refuses a header that differs by a bit.
So it need not handle links, devices, extensions or second spellings of a name.
"""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from collections.abc import Iterator
from typing import IO, Final, NamedTuple, Protocol

_BLOCK: Final = tarfile.BLOCKSIZE
_END: Final = bytes(_BLOCK)
# A size of 8 GiB or more does not fit in a header: it has a block of its own before it (POSIX pax).
_EXTENDED: Final = b"x"
_SIZE: Final = re.compile(rb"[0-9]+ size=([0-9]{1,19})\n\0*")
_OCTAL: Final = re.compile(rb"[0-7]{11}\0")
AT_ONCE: Final = 1 << 20


class InvalidTarError(ValueError):
    """The tar was not written by `envcheck store export`; the text says how it differs."""


class ByteReader(Protocol):
    """A stream to read from. It may return fewer bytes than requested; only b"" is its end."""

    def read(self, size: int = -1, /) -> bytes:
        """Return at most `size` bytes."""


class ByteWriter(Protocol):
    """A stream that takes all bytes of each write."""

    def write(self, data: bytes, /) -> int:
        """Write all bytes."""


class Member(NamedTuple):
    """One file: its name, its size in bytes, and its content, which must be read to its end before the next member."""

    name: str
    size: int
    body: IO[bytes]


def header(name: str, size: int) -> bytes:
    """Return the header of a file of `size` bytes; it has no owner and no time."""
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = size, 0o444, 0
    return member.tobuf(tarfile.PAX_FORMAT)


def read(stream: ByteReader) -> Iterator[Member]:
    """Yield each file. Raises InvalidTarError if the bytes differ from what `write` and `end` write."""
    at = 0
    while (block := _read_exactly(stream, _BLOCK)) != _END:
        name, size, before = _parse_header(stream, block)
        body = _Body(stream, size)
        yield Member(name, size, io.BufferedReader(body, AT_ONCE))
        if body.left or any(_read_exactly(stream, -size % _BLOCK)):
            message = f"{name!r} in it is not followed by zeros"
            raise InvalidTarError(message)
        at += before + size + -size % _BLOCK
    remainder = block
    while len(remainder) <= tarfile.RECORDSIZE + _BLOCK and (more := stream.read(tarfile.RECORDSIZE)):
        remainder += more
    if remainder != _end_blocks(at):
        message = "it does not end as a tar does"
        raise InvalidTarError(message)


def _end_blocks(at: int) -> bytes:
    """Return the end of a tar of `at` bytes: two empty blocks, and zeros up to a whole record."""
    return bytes(2 * _BLOCK + -(at + 2 * _BLOCK) % tarfile.RECORDSIZE)


def _parse_header(stream: ByteReader, block: bytes) -> tuple[str, int, int]:
    """Return the name and size in the header that begins with this block, and the length of the header in bytes."""
    extended = block[156:157] == _EXTENDED
    header_blocks = block + (_read_exactly(stream, 2 * _BLOCK) if extended else b"")
    last = header_blocks[-_BLOCK:]
    size_field = _SIZE.fullmatch(header_blocks[_BLOCK : 2 * _BLOCK]) if extended else _OCTAL.fullmatch(last[124:136])
    name = last[:100].rstrip(b"\0").decode("ascii", "replace")
    size = int(size_field[1]) if size_field and extended else int(size_field[0][:-1], 8) if size_field else -1
    if size < 0 or not name.isascii() or header(name, size) != header_blocks:
        message = f"{name!r} in it has a header that no export writes"
        raise InvalidTarError(message)
    return name, size, len(header_blocks)


def _read_exactly(stream: ByteReader, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = stream.read(size - len(data))
        if not more:
            message = "it is cut off, or not a tar"
            raise InvalidTarError(message)
        data += more
    return data


class _Body(io.RawIOBase):
    """The next `size` bytes of a stream: one file's content."""

    def __init__(self, stream: ByteReader, size: int) -> None:
        self._stream = stream
        self.left = size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override]  # what BufferedReader gives
        length = min(len(buffer), self.left)
        data = self._stream.read(length) if length else b""
        if length and not data:
            message = "it is cut off, or not a tar"
            raise InvalidTarError(message)
        buffer[: len(data)] = data
        self.left -= len(data)
        return len(data)


class HashingReader(io.RawIOBase):
    """A file that is hashed as it is read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hasher = hashlib.sha256()

    def read(self, size: int = -1, /) -> bytes:
        """Return at most `size` bytes."""
        block = self._file.read(size)
        self._hasher.update(block)
        return block

    def hexdigest(self) -> str:
        """Return the sha256 of what was read."""
        return self._hasher.hexdigest()


def write(to: ByteWriter, name: str, file: IO[bytes], size: int) -> str:
    """Write one file of `size` bytes with header and padding; return the sha256 of its content."""
    hashed, left = HashingReader(file), size
    to.write(header(name, size))
    while left and (block := hashed.read(min(AT_ONCE, left))):
        to.write(block)
        left -= len(block)
    to.write(bytes(left + -size % _BLOCK))
    return hashed.hexdigest()


def end(to: ByteWriter, written: int) -> None:
    """Write the end of a tar of `written` bytes."""
    to.write(_end_blocks(written))
