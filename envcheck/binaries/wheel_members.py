"""Read a wheel's native libraries and metadata, one member at a time. What its directory says of sizes is not trusted.

Wheels are zip files (binary distribution format, Python packaging specifications). A library needs seeks, so that it
is unpacked into an unnamed temporary file. Unpacking ends at a limit, not at the size that the member claims.
"""

from __future__ import annotations

import errno
import re
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from envcheck.binaries.elf import MAGIC, BinaryError
from envcheck.binaries.native_library import Library, read_library

_METADATA = re.compile(r"[^/]+\.dist-info/METADATA")
_LIBRARY = re.compile(r"\.so(\.\d+)*$")
_BLOCK = 1 << 20
# Bytes of METADATA: the longest known descriptions have a few hundred KB.
_LARGEST_TEXT = 16 << 20
# How often larger than the wheel its content may be, above a floor in bytes. The 102 wheels that were read have at
# most 10; a zip bomb has 1000.
_MOST_RATIO, _FLOOR = 100, 256 << 20
# torch, the largest package of its kind, has 13,000 members.
_MOST_MEMBERS = 200_000
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OverflowError, ValueError)


class WheelContents(NamedTuple):
    """A wheel's METADATA and its native libraries; `unread` are the libraries that cannot be read, and why.

    `directory` is that of METADATA, without ".dist-info": "ext-1.0".
    """

    directory: str
    metadata: str
    libraries: list[Library]
    unread: dict[str, str]


def read_members(path: Path) -> WheelContents:
    """Return the METADATA and the libraries of a wheel. Raises BinaryError if it is none, OSError if unreadable."""
    allowed = max(_MOST_RATIO * path.stat().st_size, _FLOOR)
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            return WheelContents(*_metadata(archive, members), *_libraries(archive, members, allowed))
    except BinaryError:
        raise
    except OSError as error:
        if error.errno != errno.EINVAL:  # a seek to before the file, as a damaged directory of members leads to
            raise
        message = "not a wheel, or a damaged one: its members are not where its directory says"
        raise BinaryError(message) from error
    except _BROKEN as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        message = f"not a wheel, or a damaged one: {reason}"
        raise BinaryError(message) from error


def _metadata(archive: zipfile.ZipFile, members: list[zipfile.ZipInfo]) -> tuple[str, str]:
    """Return the directory and the text of METADATA; refuse members that installers refuse, or take differently."""
    if len(members) > _MOST_MEMBERS:
        message = f"{len(members)} members: no wheel has so many"
        raise BinaryError(message)
    names: set[str] = set()
    for member in members:
        if member.filename in names:
            message = f"not a wheel: it has {_shown(member)} twice"
            raise BinaryError(message)
        names.add(member.filename)
        if member.filename.startswith("/") or ".." in member.filename.split("/"):
            message = f"not a wheel: {_shown(member)} lies outside of it"
            raise BinaryError(message)
    named = [member for member in members if _METADATA.fullmatch(member.filename)]
    if len(named) != 1:
        message = f"not a wheel: it has {len(named) or 'no'} METADATA"
        raise BinaryError(message)
    return named[0].filename.partition("/")[0].removesuffix(".dist-info"), _text(archive, named[0])


def _opened(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> BinaryIO:
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        message = f"{_shown(member)} is compressed by method {member.compress_type}, which wheels do not use"
        raise BinaryError(message)
    return archive.open(member)  # type: ignore[return-value]


def _shown(member: zipfile.ZipInfo) -> str:
    return ascii(member.filename)[1:-1][:200]


def _text(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> str:
    with _opened(archive, member) as stream:
        data = stream.read(_LARGEST_TEXT + 1)
    if len(data) > _LARGEST_TEXT:
        message = f"{_shown(member)} has more than {_LARGEST_TEXT >> 20} MiB"
        raise BinaryError(message)
    return data.decode("utf-8", "replace")


def _libraries(
    archive: zipfile.ZipFile, members: list[zipfile.ZipInfo], allowed: int
) -> tuple[list[Library], dict[str, str]]:
    libraries, unread = [], {}
    for member in members:
        if member.is_dir():
            continue
        with _opened(archive, member) as stream, tempfile.TemporaryFile() as file:
            start = stream.read(len(MAGIC))
            if start != MAGIC:
                if _LIBRARY.search(member.filename):
                    unread[_shown(member)] = "not an ELF file" if start else "an empty file"
                continue
            for block in _blocks(start, stream):
                allowed -= len(block)
                if allowed < 0:
                    message = f"its libraries are more than {_MOST_RATIO} times as large as the wheel"
                    raise BinaryError(message)
                file.write(block)
            try:
                libraries.append(read_library(file, _shown(member)))
            except BinaryError as error:
                unread[_shown(member)] = str(error)
    return libraries, unread


def _blocks(start: bytes, stream: BinaryIO) -> Iterator[bytes]:
    yield start
    while block := stream.read(_BLOCK):
        yield block
