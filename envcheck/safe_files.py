"""Files in directories that others may write to: no link is followed, and nothing is written to a file of another.

Whoever can write to a directory can plant a link or a pipe under a name that envcheck is about to open. So each open
refuses links (O_NOFOLLOW), each new file is created (O_EXCL), and an unfinished one must be this user's alone.
"""

import codecs
import contextlib
import errno
import fcntl
import os
import re
import select
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from envcheck.errors import UnavailableError, refuse

_ALONE: Final = os.O_NOFOLLOW | os.O_CLOEXEC
_NEW: Final = os.O_CREAT | os.O_EXCL | _ALONE
_WRITABLE_BY_OTHERS: Final = 0o022
_WRITER: Final = 30.0
_MOVE: Final = "move it away, or name another directory"


def create(path: Path, mode: int = 0o600) -> int:
    """Create a file and return its descriptor; what had the name loses it, unopened (ConfigError: a directory)."""
    while True:
        with contextlib.suppress(FileExistsError):
            return os.open(path, os.O_RDWR | _NEW, mode)
        try:
            path.unlink(missing_ok=True)
        except OSError:
            refuse(f"{path}: another's file or directory has the name of a temporary file", _MOVE)


def reopen(path: Path) -> int | None:
    """Open an earlier process's regular file for reading and writing; None where it is absent or not this user's alone.

    It has no second name, and no one else may write to it.
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_NONBLOCK | _ALONE)
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.EACCES, errno.EPERM}:
            return None
        raise
    opened = os.fstat(file)
    ours = opened.st_uid == os.geteuid() and not opened.st_mode & _WRITABLE_BY_OTHERS
    if stat.S_ISREG(opened.st_mode) and opened.st_nlink == 1 and (ours or _like_new_ones(opened, path.parent)):
        return file
    os.close(file)
    return None


def _like_new_ones(opened: os.stat_result, folder: Path) -> bool:
    """Tell whether a new file has the same owner and rights: FAT, and NFS with squashed users, keep none."""
    import tempfile  # noqa: PLC0415 (it takes as long as all of this, and few file systems need it)

    with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=folder) as other:
        fresh = os.fstat(other.fileno())
        return (opened.st_uid, opened.st_mode) == (fresh.st_uid, fresh.st_mode)
    return False


def create_or_reopen(path: Path) -> int:
    """Open an earlier process's unfinished file, or a new one in the place of whatever else has the name."""
    while True:
        with contextlib.suppress(FileExistsError):
            return os.open(path, os.O_RDWR | _NEW, 0o600)
        if (file := reopen(path)) is not None:
            return file
        if os.path.lexists(path):  # else its owner has just finished and renamed it
            return create(path)


def read(path: Path, limit: int) -> bytes:
    """Return at most `limit` bytes of a regular file of this user; nothing of what is another's, a link or a pipe."""
    file = reopen(path)
    if file is None:
        return b""
    with os.fdopen(file, "rb") as stream:
        return stream.read(limit)


def read_regular(path: Path, limit: int) -> bytes:
    """Return at most `limit` bytes of a regular file, whoever owns it. Raise OSError for anything else.

    A pipe is refused at once: its other end may never write, and reading from a device may never end.
    """
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(file, "rb") as stream:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return stream.read(limit)


def put(path: Path, content: bytes, mode: int = 0o666, *, durable: bool = True) -> None:
    """Replace a file by this content, whole or not at all; `mode` is subject to the umask; `durable`: synced."""
    _put(path, content, mode & ~umask(), durable=durable)


def _put(path: Path, content: bytes, mode: int, *, durable: bool) -> None:
    with temporary(path.parent, path.name) as (file, fresh):
        write(file, content)
        os.fchmod(file, mode)
        if durable:
            os.fsync(file)
        fresh.replace(path)


def replace(path: Path, content: bytes) -> None:
    """Replace the file that a user named, whole or not at all; it stays so after a power cut. Raise OSError naming it.

    A link is followed and stays; what is no file (/dev/null, a pipe) is written to. A signal waits for the end of a
    file: one that ends the process would leave a temporary file. A pipe may wait for its reader for ever.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)  # /dev/stdout to a pipe has no name of its own
            return
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP, signal.SIGINT, signal.SIGTERM})
        path = Path(os.path.realpath(path))
        _put(path, content, stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o666 & ~umask(), durable=True)
        with contextlib.suppress(OSError):  # not every file system can sync its names
            listing = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
            os.fsync(listing)
            os.close(listing)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def temporary(folder: Path, name: str) -> Iterator[tuple[int, Path]]:
    """Give a new file under a name that nobody can guess; under that name it ends with the block."""
    import tempfile  # noqa: PLC0415 (who only reads a file does without it, and it takes as long as all of this)

    file, fresh = tempfile.mkstemp(prefix=f".{shortened(name)}.", dir=folder)
    try:
        yield file, Path(fresh)
    finally:
        os.close(file)
        Path(fresh).unlink(missing_ok=True)


def write(file: int, content: bytes) -> None:
    """Write all of it where the file stands."""
    view = memoryview(content)
    while view:
        view = view[os.write(file, view) :]


def directory(root: Path, *below: str) -> Path:
    """Make and return a directory below `root`; raise ConfigError where a link or a file stands in its way."""
    root.mkdir(parents=True, exist_ok=True)
    for name in below:
        root /= name
        with contextlib.suppress(FileExistsError):
            root.mkdir()
        if not stat.S_ISDIR(root.lstat().st_mode):
            refuse(f"{root}: a link or a file has the name of a directory", _MOVE)
    return root


def shortened(name: str, most: int = 180) -> str:
    """Return a name cut so that what is added to it fits into the 255 bytes that a name may have (NAME_MAX)."""
    return name.encode()[:most].decode("utf-8", "ignore")


def umask() -> int:
    """Return this process's umask. The kernel says it; setting it to read it would race with other threads."""
    with contextlib.suppress(OSError):
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        if match := re.search(r"^Umask:\s*([0-7]+)$", status, re.MULTILINE):
            return int(match[1], 8)
    return 0o077


def read_whole(path: Path, most: int = 64 << 20) -> bytes:
    """Return a file that a user named, without a byte order mark; ConfigError beyond `most` bytes."""
    with open(path, "rb", opener=lambda name, how: os.open(name, how | os.O_NONBLOCK)) as stream:
        # /dev/stdin and /dev/fd/N are pipes that have, or had, their writer.
        mute = path.is_fifo() and path.resolve().parts[1] != "proc" and not select.select([stream], [], [], _WRITER)[0]
        os.set_blocking(stream.fileno(), True)
        content = stream.read(most + 1)  # of a slow writer all that it writes, of none nothing
    if mute and not content:
        refuse(f"{path}: nobody wrote to this pipe in {_WRITER:g} s", "start its writer first, or name a file")
    if len(content) > most:
        refuse(f"{path}: longer than {most >> 20} MiB", "name the file that was meant")
    return content.removeprefix(codecs.BOM_UTF8)


def lock_open(file: int, how: int, path: Path) -> None:
    """Lock an open file. Raise UnavailableError where its file system has no locks (huggingface_hub#2399)."""
    try:
        fcntl.flock(file, how)
    except OSError as error:
        if error.errno in {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}:
            fix = "choose a local directory, or mount it with locks (`flock` for Lustre, a lock server for NFS)"
            refuse(f"{path.parent}: the file system has no locks", fix, UnavailableError)
        raise


@contextlib.contextmanager
def held(lock: Path, busy: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file while the block runs.

    Where another process holds it, `busy` is called once: it may raise, else the lock is waited for. A file system
    without locks excludes nobody.
    """
    number = _locked(lock, busy)
    try:
        yield
    finally:
        if number is not None:
            lock.unlink(missing_ok=True)
            os.close(number)


def _locked(lock: Path, busy: Callable[[], None]) -> int | None:
    how = fcntl.LOCK_EX | fcntl.LOCK_NB
    while True:
        number = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(number, how)
            with contextlib.suppress(FileNotFoundError):  # its last holder has removed it
                if os.path.samestat(os.fstat(number), lock.stat()):
                    return number
        except OSError as error:
            os.close(number)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                return None
            busy()
            how = fcntl.LOCK_EX
        else:
            os.close(number)


def others_may_change(python: Path) -> str:
    """Return which part of an environment that root would run another user may change; "" where none."""
    # In a namespace of users, root is not this machine's, and nothing has its real owner.
    if os.geteuid() != 0 or Path("/proc/self/uid_map").read_text(encoding="ascii").split()[:2] != ["0", "0"]:
        return ""
    prefix, real = python.parent.parent, python.resolve()
    inside = [prefix / "pyvenv.cfg", *sorted(prefix.glob("lib*/python3*/*-packages"))]
    for place in dict.fromkeys([python, real, *inside, *python.parents, *real.parents]):
        with contextlib.suppress(OSError):
            status = place.stat()
            shared = status.st_mode & (0o022 if status.st_gid else 0o002) and not status.st_mode & stat.S_ISVTX
            if status.st_uid or shared:
                return f"{place} {'may be written by others' if shared else f'belongs to user {status.st_uid}'}"
    return ""
