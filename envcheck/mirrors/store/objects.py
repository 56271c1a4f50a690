"""The content-addressed store: one read-only file for each hash, with further names by hard link.

sha256/ab/<hash>       the objects; an object that is being fetched has its .part and journal there
info/ab/<hash>.json    the object's file name; the time of this file is when the object was last used
versions/N, current    the released trees (releases.py)
lock, users            what a process that writes, and one that only uses files, holds locked
"""

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from envcheck import safe_files
from envcheck.errors import PromiseError, UnavailableError, refuse
from envcheck.mirrors.fetch.disk import digest_of
from envcheck.mirrors.fetch.request import FetchedFile, TransferOptions, WantedFile
from envcheck.mirrors.fetch.transfer import fetch

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
READ_ONLY: Final = 0o444
_NO_LINK: Final = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP}
_NOT_TO_WRITE: Final = {errno.EROFS, errno.EACCES, errno.EPERM}
# A sector that cannot be read, or a block whose checksum in the file system does not match.
_LOST: Final = {errno.EIO, errno.EUCLEAN, errno.ENODATA, errno.EBADMSG}


class StoredObject(NamedTuple):
    """One object. `used` is the time of its last use in seconds since 1970; `links` counts its names, all included."""

    sha256: str
    size: int
    used: float
    links: int


class Store:
    """A store below `root`, which is created with its first object. Several processes may use it at once.

    `note` gets a line for the user when this process must wait for another one.
    """

    def __init__(self, root: Path, note: Callable[[str], None] = lambda _: None) -> None:
        if root.exists() and not root.is_dir():
            refuse(f"{root} is a file", "give --store a directory")
        self.root = root.absolute()
        self._note = note

    @property
    def begun(self) -> bool:
        """Tell whether the directory is a store already, rather than empty or full of other files."""
        return any((self.root / name).is_dir() for name in ("sha256", "versions"))

    def path(self, sha256: str) -> Path:
        """Return the path of an object, which need not exist."""
        return self.root / "sha256" / sha256[:2] / sha256

    def has(self, sha256: str) -> bool:
        """Tell whether the store has an object. A link is none."""
        path = self.path(sha256)
        return path.is_file() and not path.is_symlink()

    def sound(self, sha256: str) -> bool:
        """Tell whether the store has an object and its bytes have its hash."""
        return self.has(sha256) and digest_or_none(self.path(sha256)) == sha256

    def objects(self) -> list[StoredObject]:
        """Return all complete objects, sorted by hash."""
        stored = []
        for path in sorted(self.root.glob("sha256/??/*")):
            if _DIGEST.fullmatch(path.name):
                with contextlib.suppress(FileNotFoundError):
                    stat, info = path.stat(), self._info(path.name)
                    used = info.stat().st_mtime if info.exists() else stat.st_mtime
                    stored.append(StoredObject(path.name, stat.st_size, used, stat.st_nlink))
        return stored

    def name(self, sha256: str) -> str | None:
        """Return the file name that an object was stored with, or None."""
        try:
            name = dict(json.loads(self._info(sha256).read_bytes())).get("name")
        except (FileNotFoundError, ValueError, TypeError):
            return None
        return name if isinstance(name, str) else None

    def put(self, target: WantedFile, options: TransferOptions) -> FetchedFile:
        """Fetch an object, continuing an interrupted fetch. Only the name of `target.path` is used."""
        path = self.path(target.sha256)
        if path.is_symlink():
            path.unlink()
        try:
            fetched = fetch(dataclasses.replace(target, path=path), options)
        except (PromiseError, UnavailableError) as error:
            message = error.message.replace(f"{target.sha256}: ", f"{target.path.name}: ", 1)
            raise type(error)(message, fix=error.fix) from error
        path.chmod(READ_ONLY)
        self.touch(target.sha256, target.path.name)
        return fetched

    def adopt(self, source: Path, sha256: str, name: str | None = None) -> None:
        """Copy a file of this machine into the store. Raises PromiseError if the copy has another hash."""
        with (
            self._draft(sha256, source) as file,
            source.open("rb") as original,
            open(file, "wb", closefd=False) as copy,
        ):
            shutil.copyfileobj(original, copy, 1 << 20)
        self.touch(sha256, name or source.name)

    def take(self, source: Path, sha256: str, name: str) -> None:
        """Move a file of this file system, whose hash the caller has just compared, into the store.

        An intact object that exists already stays: versions link to it, and a second one would use its room twice.
        """
        if self.sound(sha256):
            source.unlink()
        else:
            source.chmod(READ_ONLY)
            self.path(sha256).parent.mkdir(parents=True, exist_ok=True)
            source.replace(self.path(sha256))
            sync_folder(self.path(sha256).parent)
        self.touch(sha256, name)

    def add(self, content: bytes, name: str) -> str:
        """Store these bytes and return their sha256."""
        sha256 = hashlib.sha256(content).hexdigest()
        if not self.sound(sha256):
            with self._draft(sha256, Path(name)) as file:
                safe_files.write(file, content)
        self.touch(sha256, name)
        return sha256

    def view(self, sha256: str, target: Path) -> None:
        """Give an object another name: a hard link, or a copy if the file system cannot link it.

        Raises UnavailableError if the store does not have the object.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(f".link-{os.getpid()}-{time.monotonic_ns()}")
        try:
            _link(self.path(sha256), fresh)
            fresh.replace(target)
        except FileNotFoundError:
            refuse(f"{self.root}: there is no {self.name(sha256) or sha256}", "fetch it again", UnavailableError)
        finally:
            fresh.unlink(missing_ok=True)  # two names of one file stay two names when one is renamed to the other
        self.touch(sha256)

    def touch(self, sha256: str, name: str | None = None) -> None:
        """Record an object's name and that it was used now. A read-only store stays as it is."""
        info, name = self._info(sha256), name or self.name(sha256)
        with ignore_read_only():
            info.parent.mkdir(parents=True, exist_ok=True)
            safe_files.put(info, json.dumps({"name": name}).encode() + b"\n", durable=False)

    def evict(self, sha256: str) -> None:
        """Remove an object and its info file."""
        self.path(sha256).unlink(missing_ok=True)
        self._info(sha256).unlink(missing_ok=True)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Protect the objects from eviction until the block ends. Does nothing to a read-only store."""
        with contextlib.ExitStack() as stack:
            with ignore_read_only():
                stack.enter_context(self.locked("users", fcntl.LOCK_SH))
            yield

    @contextlib.contextmanager
    def locked(self, name: str = "lock", how: int = fcntl.LOCK_EX) -> Iterator[None]:
        """Hold a lock until the block or the process ends. With LOCK_NB, raises UnavailableError instead of waiting."""
        self.root.mkdir(parents=True, exist_ok=True)
        file = os.open(self.root / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            try:
                safe_files.lock_open(file, how | fcntl.LOCK_NB, self.root / name)
            except BlockingIOError as error:
                if how & fcntl.LOCK_NB:
                    message = f"{self.root}: another process uses files of the store"
                    raise UnavailableError(message, fix="wait until it has ended") from error
                self._note("another process writes to the store: waiting for it")
                fcntl.flock(file, how)
            yield
        finally:
            os.close(file)

    def _info(self, sha256: str) -> Path:
        return self.root / "info" / sha256[:2] / f"{sha256}.json"

    @contextlib.contextmanager
    def _draft(self, sha256: str, source: Path) -> Iterator[int]:
        """Yield a new file that becomes the object after the block, if the disk returns its hash, else PromiseError."""
        folder = self.path(sha256).parent
        folder.mkdir(parents=True, exist_ok=True)
        with safe_files.temporary(folder, sha256) as (file, draft):
            yield file
            if digest_or_none(draft) != sha256:
                refuse(f"{source}: it has another sha256 than {sha256}", "use the right file", PromiseError)
            os.fsync(file)
            os.fchmod(file, READ_ONLY)
            draft.replace(self.path(sha256))
            sync_folder(folder)


def digest_or_none(path: Path) -> str | None:
    """Return the sha256 of a file as hex, or None if it is not there or the disk cannot read its bytes."""
    try:
        with path.open("rb") as file:
            return digest_of(file.fileno(), os.fstat(file.fileno()).st_size)
    except FileNotFoundError:
        return None
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


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        with source.open("rb") as original, target.open("xb") as copy:
            shutil.copyfileobj(original, copy, 1 << 20)
            copy.flush()
            os.fsync(copy.fileno())
            os.fchmod(copy.fileno(), READ_ONLY)
