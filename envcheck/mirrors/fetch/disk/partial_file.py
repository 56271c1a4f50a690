"""The unfinished file on disk: locked by one process, with reserved space, renamed when it is complete."""

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

# Seconds between attempts to lock; a wait in the kernel could not be interrupted.
_LOOK: Final = 0.2
# What st_blocks counts in, whatever the file system (stat(2)).
_BLOCK: Final = 512
# Bytes. A file of 128 GB has 2048 pieces; each may be recorded and forgotten many times.
_LONGEST_JOURNAL: Final = 64 << 20


def part_path(target: WantedFile) -> Path:
    """Return the path of the unfinished file."""
    return target.path.with_name(f".{safe_files.shortened(target.path.name)}.{target.sha256[:8]}.part")


def journal_path(part: Path) -> Path:
    """Return the path of an unfinished file's journal."""
    return part.with_name(part.name + ".journal")


def discard(part: Path) -> None:
    """Remove an unfinished file and its journal."""
    part.unlink(missing_ok=True)
    journal_path(part).unlink(missing_ok=True)


def valid_pieces(part: Path, header: journal.Header) -> dict[int, str]:
    """Return the pieces of an earlier process that are valid for this file."""
    noted, pieces = read_journal(part, header.boot)
    if noted is None or not noted.fits(header) or part.lstat().st_size != header.size:
        return {}
    last = len(spans(header.size, header.piece))
    return {piece: source for piece, source in pieces.items() if piece < last}


def read_journal(part: Path, boot: str | None = None) -> tuple[journal.Header | None, dict[int, str]]:
    """Return the header and the valid pieces from an unfinished file's journal."""
    return journal.read(
        safe_files.read(journal_path(part), _LONGEST_JOURNAL), journal.boot_id() if boot is None else boot
    )


@contextlib.contextmanager
def locked(part: Path, options: TransferOptions) -> Iterator[int]:
    """Open and lock the unfinished file. The kernel releases the lock when the process ends.

    After an error the file stays only if a later run can resume it.
    """
    while True:
        file = safe_files.create_or_reopen(part)
        try:
            _lock(file, part, options)
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


def _lock(file: int, part: Path, options: TransferOptions) -> None:
    reported = False
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if not reported:
            options.note(f"another process is fetching {part.name[1:].removesuffix('.part')[:-9]}: waiting for it")
            reported = True
        if options.stop.wait(_LOOK):
            raise StoppedError


def _is_current(file: int, part: Path) -> bool:
    """Tell whether the path still names the open file. Another process may have finished and renamed it."""
    try:
        named = part.lstat()
    except FileNotFoundError:
        return False
    opened = os.fstat(file)
    return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)


def check_disk_space(targets: Sequence[WantedFile]) -> None:
    """Raise UnavailableError if the files together need more space than their file systems have.

    Files of unknown size or with a local copy are not counted; each file reserves its own space later.
    """
    needs: collections.Counter[int] = collections.Counter()
    folders: dict[int, Path] = {}
    for target in targets:
        folder = next(above for above in target.path.parents if above.exists())
        device = folder.stat().st_dev
        folders.setdefault(device, folder)
        needs[device] += 0 if target.local else _bytes_to_allocate(target)
    for device, size in needs.items():
        usage = shutil.disk_usage(folders[device])
        if usage.total and size > usage.free:
            raise _no_space_error(folders[device] / "all", size)


def _bytes_to_allocate(target: WantedFile) -> int:
    """Return the bytes of disk space that a file still needs."""
    with contextlib.suppress(FileNotFoundError):
        if target.path.stat().st_size == target.size:
            return 0
    with contextlib.suppress(FileNotFoundError):
        return max(0, (target.size or 0) - part_path(target).stat().st_blocks * _BLOCK)
    return target.size or 0


def reserve(file: int, size: int, part: Path) -> None:
    """Allocate the file's size and blocks now, so that a full disk is an error before the first byte is fetched.

    If the file system cannot reserve (NFS, ext3, ramfs), compare the size with its free space.
    """
    try:
        os.ftruncate(file, size)
        allocated = os.fstat(file).st_blocks * _BLOCK
        usage = shutil.disk_usage(part.parent)
        if usage.total and size - allocated > usage.free:  # without a total, the free space means nothing
            raise _no_space_error(part, size)
        if size:
            _allocate(file, size)
    except OSError as error:
        if error.errno not in {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}:
            raise disk_error(error, part, size) from error


def _allocate(file: int, size: int) -> None:
    """Call fallocate(2), and not posix_fallocate: glibc's fallback writes to every block."""
    import ctypes  # noqa: PLC0415 (saves five milliseconds when nothing is new)

    libc = ctypes.CDLL(None, use_errno=True)
    call = getattr(libc, "fallocate64", None) or getattr(libc, "fallocate", None)
    if call is None:
        return
    while call(file, 0, ctypes.c_int64(0), ctypes.c_int64(size)) != 0:
        if ctypes.get_errno() != errno.EINTR:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def disk_error(error: OSError, path: Path, size: int) -> UnavailableError:
    """Return the error for the user from a system error while `path` was written."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return _no_space_error(path, size)
    if error.errno == errno.EFBIG:
        message = f"{path.parent}: a file of {size} bytes is more than its file system or `ulimit -f` allows"
        return UnavailableError(message, fix="choose another directory (--output)")
    return UnavailableError(f"{path.parent}: {error.strerror}", fix="choose a writable directory (--output)")


def _no_space_error(path: Path, size: int) -> UnavailableError:
    free = shutil.disk_usage(path.parent).free
    message = f"{path.parent}: {size} bytes are needed and {free} are free"
    return UnavailableError(message, fix="free some space, or choose another directory (--output)")


def write(file: int, chunk: bytes, at: int) -> None:
    """Write a whole chunk at an offset."""
    view = memoryview(chunk)
    while view:
        written = os.pwrite(file, view, at)
        view, at = view[written:], at + written


def take_local_copy(local: Sequence[Path], part: Path, path: Path, is_target: Callable[[Path], bool]) -> int | None:
    """Put a file of this machine at `path` by a hard link, or by a copy if linking fails; return its size or None.

    The link or copy is verified before it gets the name, because the original may change meanwhile.
    """
    copy = part.with_name(part.name + ".local")
    for source in local:
        copy.unlink(missing_ok=True)
        try:
            os.link(source.resolve(), copy)
        except OSError:
            if not is_target(source):
                continue
            with source.open("rb") as original, os.fdopen(safe_files.create(copy), "wb") as stream:
                shutil.copyfileobj(original, stream)
                os.fchmod(stream.fileno(), 0o666 & ~safe_files.umask())
        if is_target(copy):
            size = copy.stat().st_size
            copy.replace(path)
            discard(part)
            return size
    copy.unlink(missing_ok=True)
    return None


def publish(part: Path, file: int, path: Path, *, durable: bool = True) -> None:
    """Rename the finished file to its path; `durable`: sync its bytes before and the directory after."""
    if durable:
        os.fsync(file)
    os.fchmod(file, 0o666 & ~safe_files.umask())
    part.replace(path)
    journal_path(part).unlink(missing_ok=True)
    if durable:
        _sync_folder(path.parent, os.fsync)


def sync_folders(folders: Iterable[Path]) -> None:
    """Sync what was published in these folders: one syncfs(2) for each file system instead of three syncs a file."""
    devices = {folder.stat().st_dev: folder for folder in folders}
    for folder in devices.values():
        _sync_file_system(folder)


def _sync_file_system(folder: Path) -> None:
    try:
        _sync_folder(folder, _syncfs)
    except OSError as error:
        message = f"{folder}: cannot write everything to the disk: {error.strerror}"
        raise UnavailableError(message, fix="free some space, and run it again") from error


def _sync_folder(folder: Path, sync: Callable[[int], object]) -> None:
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(file)
    finally:
        os.close(file)


def _syncfs(file: int) -> None:
    import ctypes  # noqa: PLC0415 (saves five milliseconds when nothing is new)

    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "syncfs"):
        os.sync()
    elif libc.syncfs(file) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
