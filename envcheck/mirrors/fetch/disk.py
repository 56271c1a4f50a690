"""The unfinished file on disk: locked by one process, with a journal of its pieces, renamed when it is complete."""

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from envcheck import safe_files
from envcheck.errors import UnavailableError, refuse
from envcheck.mirrors.fetch.request import StoppedError, TransferOptions, WantedFile
from envcheck.struct_types import know_types

# Seconds between attempts to lock; a wait in the kernel could not be interrupted.
_LOOK: Final = 0.2
# What st_blocks counts in, whatever the file system (stat(2)).
_BLOCK: Final = 512
_READ: Final = 1 << 20
_LONGEST_JOURNAL: Final = 4 << 20


def part_path(target: WantedFile) -> Path:
    """Return the path of the unfinished file."""
    return target.path.with_name(f".{safe_files.shortened(target.path.name)}.{target.digest[:8]}.part")


def journal_path(part: Path) -> Path:
    """Return the path of an unfinished file's journal."""
    return part.with_name(part.name + ".journal")


def discard(part: Path) -> None:
    """Remove an unfinished file and its journal."""
    part.unlink(missing_ok=True)
    journal_path(part).unlink(missing_ok=True)


class Journal(msgspec.Struct, frozen=True, array_like=True):
    """The pieces of an unfinished file that a later process may reuse. The proof is the hash of the whole file."""

    digest: str
    size: int = 0
    piece: int = 0
    pieces: set[int] = set()


know_types(Journal)


def write_journal(part: Path, journal: Journal) -> None:
    """Note the pieces whose bytes are on the disk."""
    fresh = Path(f"{journal_path(part)}.new")
    file = safe_files.create(fresh)
    try:
        safe_files.write(file, msgspec.json.encode(journal))
    finally:
        os.close(file)
    fresh.replace(journal_path(part))


def read_journal(part: Path, digest: str) -> Journal:
    """Return what is noted of an unfinished file; an empty journal if nothing is, or of another file or size."""
    with contextlib.suppress(msgspec.DecodeError, RecursionError, FileNotFoundError):
        journal = msgspec.json.decode(safe_files.read(journal_path(part), _LONGEST_JOURNAL), type=Journal)
        valid = journal.piece > 0 and all(0 <= number * journal.piece < journal.size for number in journal.pieces)
        if valid and journal.digest == digest and part.lstat().st_size == journal.size:
            return journal
    return Journal(digest)


@contextlib.contextmanager
def locked(part: Path, digest: str, options: TransferOptions) -> Iterator[int]:
    """Open and lock the unfinished file. After an error the file stays only if a later run can resume it."""
    while True:
        file = safe_files.create_or_reopen(part)
        try:
            _lock(file, part, options)
            if _is_current(file, part):
                try:
                    yield file
                except BaseException:
                    if not read_journal(part, digest).pieces:
                        discard(part)
                    raise
                return
        finally:
            os.close(file)


def _lock(file: int, part: Path, options: TransferOptions) -> None:
    reported = False
    while True:
        with contextlib.suppress(BlockingIOError):
            safe_files.lock_open(file, fcntl.LOCK_EX | fcntl.LOCK_NB, part)
            return
        if not reported:
            options.note(f"another process is fetching {part.name[1:].removesuffix('.part')[:-9]}: waiting for it")
            reported = True
        if options.stop.wait(_LOOK):
            raise StoppedError


def _is_current(file: int, part: Path) -> bool:
    """Tell whether the path still names the open file. Another process may have finished and renamed it."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(part.lstat(), os.fstat(file))
    return False


def reserve(file: int, size: int, part: Path) -> int:
    """Give the file its size, and return what is free. Raise UnavailableError before the first byte if that is less."""
    try:
        os.ftruncate(file, size)
    except OSError as error:
        raise disk_error(error, part, size) from error
    usage = shutil.disk_usage(part.parent)
    # Without a total, the free space means nothing.
    if usage.total and size - os.fstat(file).st_blocks * _BLOCK > usage.free:
        raise disk_error(OSError(errno.ENOSPC, ""), part, size)
    return usage.free if usage.total else 1 << 63


def disk_error(error: OSError, path: Path, size: int) -> UnavailableError:
    """Return the error for the user from a system error while `path` was written."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        message = f"{path.parent}: {size} bytes are needed and {shutil.disk_usage(path.parent).free} are free"
        return UnavailableError(message, fix="free some space, or choose another directory (--output)")
    if error.errno == errno.EFBIG:
        message = f"{path.parent}: a file of {size} bytes is more than its file system or `ulimit -f` allows"
        return UnavailableError(message, fix="choose another directory (--output)")
    return UnavailableError(f"{path.parent}: {error.strerror}", fix="choose a writable directory (--output)")


def write(file: int, chunk: bytes, at: int) -> None:
    """Write a whole chunk at an offset."""
    view = memoryview(chunk)
    while view:
        written = os.pwrite(file, view, at)
        view, at = view[written:], at + written


def digest_of(file: int, size: int, hasher: "hashlib._Hash | None" = None) -> str:
    """Return the hash of the first `size` bytes of an open file, as hex: sha256, or that of the hasher."""
    hasher = hasher or hashlib.sha256()
    feed(hasher, file, 0, size)
    return hasher.hexdigest()


def feed(hasher: "hashlib._Hash", file: int, start: int, stop: int) -> None:
    """Hash a part of a file. Raise OSError if it became shorter."""
    while start < stop:
        block = os.pread(file, min(_READ, stop - start), start)
        if not block:
            message = "the file became shorter while it was read"
            raise OSError(0, message)
        hasher.update(block)
        start += len(block)


def has_hash(target: WantedFile, path: Path) -> bool:
    """Tell whether a regular file exists and has the hash."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return False
    try:
        opened = os.fstat(file)
        if not stat.S_ISREG(opened.st_mode) or target.size not in {None, opened.st_size}:
            return False
        return digest_of(file, opened.st_size, target.hasher(opened.st_size)) == target.digest
    finally:
        os.close(file)


def take_local_copy(target: WantedFile, part: Path) -> int | None:
    """Put a file of this machine at the path, as a hard link or a copy that is verified; return its size or None."""
    copy = Path(f"{part}.local")
    for source in filter(Path.is_file, target.local):
        copy.unlink(missing_ok=True)
        try:
            os.link(source.resolve(), copy)
        except OSError:
            if not has_hash(target, source):
                continue  # unreadable, or another file
            with source.open("rb") as original, os.fdopen(safe_files.create(copy), "wb") as stream:
                shutil.copyfileobj(original, stream)
                os.fchmod(stream.fileno(), 0o666 & ~safe_files.umask())
        if has_hash(target, copy):
            size = copy.stat().st_size
            copy.replace(target.path)
            discard(part)
            return size
    copy.unlink(missing_ok=True)
    return None


def publish(part: Path, file: int, path: Path, *, durable: bool = True) -> None:
    """Rename the finished file to its path; `durable`: its bytes are on the disk before it has the name."""
    if durable:
        os.fsync(file)
    os.fchmod(file, 0o666 & ~safe_files.umask())
    if not _is_current(file, part):
        refuse(f"{part}: another process replaced it meanwhile", "run the same command again", UnavailableError)
    part.replace(path)
    journal_path(part).unlink(missing_ok=True)
