"""The unfinished file on the disk: held by one process, with its room reserved, published whole."""

from __future__ import annotations

import collections
import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from envcheck import safe_files
from envcheck.errors import UnavailableError
from envcheck.mirrors.fetch.disk import journal
from envcheck.mirrors.fetch.plan.pieces import spans
from envcheck.mirrors.fetch.request import StoppedError, TransferOptions, WantedFile

# Seconds between looks at whether the other process has ended; a wait in the kernel could not be interrupted.
_LOOK: Final = 0.2
# What st_blocks counts in, whatever the file system (stat(2)).
_BLOCK: Final = 512
# Bytes. A file of 128 GB has 2048 pieces; each may be noted and forgotten many times.
_LONGEST_JOURNAL: Final = 64 << 20


def part_path(wanted: WantedFile) -> Path:
    """Return where a file is as long as it is unfinished."""
    return wanted.path.with_name(f".{safe_files.shortened(wanted.path.name)}.{wanted.sha256[:8]}.part")


def journal_path(part: Path) -> Path:
    """Return where the journal of an unfinished file is."""
    return part.with_name(part.name + ".journal")


def discard(part: Path) -> None:
    """Remove an unfinished file and its journal."""
    part.unlink(missing_ok=True)
    journal_path(part).unlink(missing_ok=True)


def valid_pieces(part: Path, header: journal.Header) -> dict[int, str]:
    """Return the pieces of an earlier process that hold for this file."""
    found, pieces = read_journal(part, header.boot)
    if found is None or not found.fits(header) or part.lstat().st_size != header.size:
        return {}
    last = len(spans(header.size, header.piece))
    return {piece: source for piece, source in pieces.items() if piece < last}


def read_journal(part: Path, boot: str | None = None) -> tuple[journal.Header | None, dict[int, str]]:
    """Return what the journal of an unfinished file says: its header, and the pieces that hold."""
    return journal.read(
        safe_files.read(journal_path(part), _LONGEST_JOURNAL), journal.boot_id() if boot is None else boot
    )


@contextlib.contextmanager
def locked(part: Path, means: TransferOptions) -> Iterator[int]:
    """Open the unfinished file and hold it alone. The lock is the kernel's: it ends with whoever held it.

    What ends in an error leaves it there only if there is something in it to go on with.
    """
    while True:
        file = safe_files.create_or_reopen(part)
        try:
            _lock(file, part, means)
            if _is_current(file, part):
                with _discarded_if_empty(part):
                    yield file
                return
        finally:
            os.close(file)


@contextlib.contextmanager
def _discarded_if_empty(part: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        if not read_journal(part)[1]:
            discard(part)
        raise


def _lock(file: int, part: Path, means: TransferOptions) -> None:
    told = False
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if not told:
            means.note(f"another process is fetching {part.name[1:].removesuffix('.part')[:-9]}: waiting for it")
            told = True
        if means.stop.wait(_LOOK):
            raise StoppedError


def _is_current(file: int, part: Path) -> bool:
    """Tell whether the path still names the open file: its last holder may have finished and moved it away."""
    try:
        there = part.lstat()
    except FileNotFoundError:
        return False
    mine = os.fstat(file)
    return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)


def check_disk_space(many: Sequence[WantedFile]) -> None:
    """Raise UnavailableError where all the files together are more than their file systems have room for.

    What has no known size, or may be linked from this machine, is not counted; each file reserves its own room later.
    """
    needs: collections.Counter[int] = collections.Counter()
    folders: dict[int, Path] = {}
    for wanted in many:
        folder = next(above for above in wanted.path.parents if above.exists())
        device = folder.stat().st_dev
        folders.setdefault(device, folder)
        needs[device] += 0 if wanted.local else _bytes_to_allocate(wanted)
    for device, size in needs.items():
        room = shutil.disk_usage(folders[device])
        if room.total and size > room.free:
            raise _no_space_error(folders[device] / "all", size)


def _bytes_to_allocate(wanted: WantedFile) -> int:
    """Return the bytes of room that a file takes which it does not hold yet."""
    with contextlib.suppress(FileNotFoundError):
        if wanted.path.stat().st_size == wanted.size:
            return 0
    with contextlib.suppress(FileNotFoundError):
        return max(0, (wanted.size or 0) - part_path(wanted).stat().st_blocks * _BLOCK)
    return wanted.size or 0


def reserve(file: int, size: int, part: Path) -> None:
    """Give the file its size and its blocks now: a full disk is told before the first byte is fetched.

    Where the file system reserves nothing (NFS, ext3, ramfs), what it says to be free has to be enough.
    """
    try:
        os.ftruncate(file, size)
        held = os.fstat(file).st_blocks * _BLOCK
        room = shutil.disk_usage(part.parent)
        if room.total and size - held > room.free:  # one that tells no total tells nothing of what is free
            raise _no_space_error(part, size)
        if size:
            _allocate(file, size)
    except OSError as error:
        if error.errno not in {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}:
            raise disk_error(error, part, size) from error


def _allocate(file: int, size: int) -> None:
    """Call fallocate(2). posix_fallocate is not it: where there is none, glibc's writes to every block instead."""
    import ctypes  # noqa: PLC0415 (five milliseconds that a fetch of nothing new does not spend)

    libc = ctypes.CDLL(None, use_errno=True)
    call = getattr(libc, "fallocate64", None) or getattr(libc, "fallocate", None)
    if call is None:
        return
    while call(file, 0, ctypes.c_int64(0), ctypes.c_int64(size)) != 0:
        if ctypes.get_errno() != errno.EINTR:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def disk_error(error: OSError, path: Path, size: int) -> UnavailableError:
    """Return the error a user reads of one that the system gave while `path` was written."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return _no_space_error(path, size)
    if error.errno == errno.EFBIG:
        message = f"{path.parent}: a file of {size} bytes is more than its file system or `ulimit -f` allows"
        return UnavailableError(message, fix="name another directory (--output)")
    return UnavailableError(f"{path.parent}: {error.strerror}", fix="name a directory that can be written (--output)")


def _no_space_error(path: Path, size: int) -> UnavailableError:
    free = shutil.disk_usage(path.parent).free
    message = f"{path.parent}: {size} bytes are needed and {free} are free"
    return UnavailableError(message, fix="make room, or name another directory (--output)")


def write(file: int, chunk: bytes, at: int) -> None:
    """Write all of a chunk at its place."""
    view = memoryview(chunk)
    while view:
        written = os.pwrite(file, view, at)
        view, at = view[written:], at + written


def take_local_copy(local: Sequence[Path], part: Path, path: Path, right: Callable[[Path], bool]) -> int | None:
    """Put a file of this machine at `path` by a hard link, or by a copy where none can be made; return its size.

    What gets the name is looked at after it was linked or copied: whatever else writes to the original meanwhile.
    """
    copy = part.with_name(part.name + ".local")
    for source in local:
        copy.unlink(missing_ok=True)
        try:
            os.link(source.resolve(), copy)
        except OSError:
            if not right(source):
                continue
            with source.open("rb") as original, os.fdopen(safe_files.create(copy), "wb") as stream:
                shutil.copyfileobj(original, stream)
                os.fchmod(stream.fileno(), 0o666 & ~safe_files.umask())
        if right(copy):
            size = copy.stat().st_size
            copy.replace(path)
            discard(part)
            return size
    copy.unlink(missing_ok=True)
    return None


def publish(part: Path, file: int, path: Path, *, durable: bool = True) -> None:
    """Move the finished file to its name; `durable`: once its bytes are on the disk, as is the name in the end."""
    if durable:
        os.fsync(file)
    os.fchmod(file, 0o666 & ~safe_files.umask())
    part.replace(path)
    journal_path(part).unlink(missing_ok=True)
    if durable:
        _sync_folder(path.parent, os.fsync)


def sync_folders(folders: Iterable[Path]) -> None:
    """Have on the disk what was published there: one syncfs(2) for each file system, not three syncs for each file."""
    devices = {folder.stat().st_dev: folder for folder in folders}
    for folder in devices.values():
        _sync_file_system(folder)


def _sync_file_system(folder: Path) -> None:
    try:
        _sync_folder(folder, _syncfs)
    except OSError as error:
        message = f"{folder}: not all that was written is on the disk: {error.strerror}"
        raise UnavailableError(message, fix="make room, and run it again") from error


def _sync_folder(folder: Path, sync: Callable[[int], object]) -> None:
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(file)
    finally:
        os.close(file)


def _syncfs(file: int) -> None:
    import ctypes  # noqa: PLC0415 (five milliseconds that a fetch of nothing new does not spend)

    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "syncfs"):
        os.sync()
    elif libc.syncfs(file) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
