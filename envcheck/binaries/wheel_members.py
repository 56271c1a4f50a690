"""Read a wheel's native libraries and metadata, one member at a time. What its directory says of sizes is not trusted.

Wheels are zip files (binary distribution format, Python packaging specifications). A library needs seeks, so that it
is unpacked into an unnamed temporary file. Unpacking ends at a limit, not at the size that the member claims.
"""

from __future__ import annotations

import errno
import itertools
import re
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO, NamedTuple

from envcheck.binaries.native_library import MAGIC, BinaryError, Library, read_library, refuse_if

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
    except (OSError, *_BROKEN) as error:
        # EINVAL: a seek to before the file, as a damaged directory of members leads to.
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        message = f"not a wheel, or a damaged one: {' '.join(str(error).split())[:200] or type(error).__name__}"
        raise BinaryError(message) from error


def _metadata(archive: zipfile.ZipFile, members: list[zipfile.ZipInfo]) -> tuple[str, str]:
    """Return the directory and the text of METADATA; refuse members that installers refuse, or take differently."""
    refuse_if(len(members) > _MOST_MEMBERS, f"{len(members)} members: no wheel has so many")
    names: set[str] = set()
    for member in members:
        refuse_if(member.filename in names, f"not a wheel: it has {_shown(member)} twice")
        names.add(member.filename)
        outside = member.filename.startswith("/") or ".." in member.filename.split("/")
        refuse_if(outside, f"not a wheel: {_shown(member)} lies outside of it")
    named = [member for member in members if _METADATA.fullmatch(member.filename)]
    refuse_if(len(named) != 1, f"not a wheel: it has {len(named) or 'no'} METADATA")
    return named[0].filename.partition("/")[0].removesuffix(".dist-info"), _text(archive, named[0])


def _opened(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> BinaryIO:
    odd = member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
    refuse_if(odd, f"{_shown(member)} is compressed by method {member.compress_type}, which wheels do not use")
    return archive.open(member)  # type: ignore[return-value]


def _shown(member: zipfile.ZipInfo) -> str:
    return ascii(member.filename)[1:-1][:200]


def _text(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> str:
    with _opened(archive, member) as stream:
        data = stream.read(_LARGEST_TEXT + 1)
    refuse_if(len(data) > _LARGEST_TEXT, f"{_shown(member)} has more than {_LARGEST_TEXT >> 20} MiB")
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
            for block in itertools.chain([start], iter(lambda: stream.read(_BLOCK), b"")):
                allowed -= len(block)
                refuse_if(allowed < 0, f"its libraries are more than {_MOST_RATIO} times as large as the wheel")
                file.write(block)
            try:
                libraries.append(read_library(file, _shown(member)))
            except BinaryError as error:
                unread[_shown(member)] = str(error)
    return libraries, unread
