"""The files of an OSV database. Whatever is named like one and cannot be read is an answer, never passed over."""

from __future__ import annotations

import os
import stat
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

# In lower case; a file system or a copy may have changed the case of a name.
_RECORD: Final = ".json"
_ARCHIVE: Final = ".zip"
# The longest records list some thousand versions; what is longer is no record.
_LARGEST: Final = 32_000_000


class OsvFile(NamedTuple):
    """A record's name and bytes, or what kept it from being read; None for a file that is no record by its name."""

    where: str
    content: bytes | Exception | None


def files(path: Path) -> Iterator[OsvFile]:
    """Yield each file below a directory, those in its zip files included, or each of one zip file."""
    if path.is_file():
        yield from _zipped(path)
        return
    seen: set[tuple[int, int]] = set()
    folders = [path]
    while folders:
        folder = folders.pop()
        try:
            status = folder.stat()
            # A link may lead to where the walk has been.
            if (status.st_dev, status.st_ino) in seen:
                continue
            entries = sorted(folder.iterdir())
        except OSError as error:
            yield OsvFile(_shown(folder), error)
            continue
        seen.add((status.st_dev, status.st_ino))
        yield from _entries(entries, folders)


def _entries(entries: Sequence[Path], folders: list[Path]) -> Iterator[OsvFile]:
    """Yield what a directory has, and add the directories among it to `folders`."""
    for entry in entries:
        try:
            status = entry.stat()
        except OSError as error:
            # Also one of another name: what a link without its end led to may have been a directory of records.
            yield OsvFile(_shown(entry), error)
            continue
        if stat.S_ISDIR(status.st_mode):
            folders.append(entry)
        yield from _entry(entry, status)


def _entry(entry: Path, status: os.stat_result) -> Iterator[OsvFile]:
    kind = entry.suffix.lower()
    if kind not in (_RECORD, _ARCHIVE):
        if not stat.S_ISDIR(status.st_mode):
            yield OsvFile(_shown(entry), None)
    elif not stat.S_ISREG(status.st_mode):
        # A pipe is not opened: it would be waited for without end.
        yield OsvFile(_shown(entry), OSError("it is no regular file"))
    elif kind == _ARCHIVE:
        yield from _zipped(entry)
    else:
        yield OsvFile(_shown(entry), _read(entry, status.st_size))


def _read(entry: Path, size: int) -> bytes | Exception:
    if size > _LARGEST:
        return OSError(f"{size} bytes are no record")
    try:
        return entry.read_bytes()
    except OSError as error:
        return error


def _zipped(path: Path) -> Iterator[OsvFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                kind = PurePosixPath(info.filename).suffix.lower()
                if kind in (_RECORD, _ARCHIVE):
                    yield OsvFile(f"{_shown(path)}!{info.filename}", _member(archive, info, kind))
                elif not info.is_dir():
                    yield OsvFile(f"{_shown(path)}!{info.filename}", None)
    except Exception as error:  # noqa: BLE001 (a damaged zip raises anything; it is reported, not hidden)
        yield OsvFile(_shown(path), error)


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, kind: str) -> bytes | Exception:
    if kind == _ARCHIVE:
        return OSError("a zip file in a zip file: unpack it")
    if info.file_size > _LARGEST:
        return OSError(f"{info.file_size} bytes are no record")
    try:
        return archive.read(info)
    except Exception as error:  # noqa: BLE001 (zlib, lzma, an encrypted member: each raises its own; all are reported)
        return error


def _shown(path: Path) -> str:
    """Return a name that can be printed, also of bytes that are no text."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
