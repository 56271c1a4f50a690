"""File system operations of the store: hard links, reflinks, fsync, and hashes of files on failing disks."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from envcheck.mirrors.fetch.disk.running_hash import digest_of

READ_ONLY: Final = 0o444
# linux/fs.h: _IOW(0x94, 9, int).
_FICLONE: Final = 0x40049409
_NO_LINK: Final = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP}
_NOT_TO_WRITE: Final = {errno.EROFS, errno.EACCES, errno.EPERM}
# A sector that cannot be read, or a block whose checksum in the file system does not match.
_LOST: Final = {errno.EIO, errno.EUCLEAN, errno.ENODATA, errno.EBADMSG}


def digest_or_none(file: int) -> str | None:
    """Return the sha256 of an open file as hex, or None if the disk cannot read its bytes."""
    try:
        return digest_of(file, os.fstat(file).st_size)
    except OSError as error:
        if error.errno not in _LOST:
            raise
        return None


@contextlib.contextmanager
def ignore_read_only() -> Iterator[None]:
    """Ignore the errors of writing to a store that is read-only."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NOT_TO_WRITE:
            raise


def sync_folder(folder: Path) -> None:
    """Write a directory's entries to the disk."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def make_readable(folder: Path) -> None:
    """Make a directory that others may read, whatever the umask. An existing directory stays as it is."""
    if not folder.is_dir():
        folder.mkdir(parents=True)
        folder.chmod(0o755)


def link(source: Path, target: Path) -> None:
    """Make a hard link; if the file system cannot, a reflink, and if it cannot do that either, a copy."""
    try:
        target.hardlink_to(source)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        _duplicate(source, target)


def _duplicate(source: Path, target: Path) -> None:
    with source.open("rb") as original, temporary(target.parent) as draft, draft.open("r+b") as copy:
        clone_or_copy(original.fileno(), copy.fileno())
        os.fsync(copy.fileno())
        os.fchmod(copy.fileno(), READ_ONLY)
        draft.replace(target)


@contextlib.contextmanager
def temporary(folder: Path) -> Iterator[Path]:
    """Yield the path of an empty file; remove it at the end of the block unless it was renamed."""
    file, name = tempfile.mkstemp(prefix=".draft-", dir=folder)
    os.close(file)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def clone_or_copy(source: int, target: int) -> None:
    """Share the blocks if the file system can (btrfs, XFS), else copy the bytes."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        with open(source, "rb", closefd=False) as original, open(target, "wb", closefd=False) as copy:
            shutil.copyfileobj(original, copy, 1 << 20)
