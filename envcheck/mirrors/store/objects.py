"""The content-addressed store: one file a hash, read-only, under any number of names by hard link or reflink.

sha256/ab/<hash>       the objects; beside one that is being fetched, its .part and journal
info/ab/<hash>.json    what it was called; the time of that file is when it was last used
versions/N, current    the published trees (versions.py)
held/                  what processes at work keep from eviction
quarantine/            what had another hash than its name
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from envcheck import safe_files
from envcheck.errors import ConfigError, PromiseError, UnavailableError
from envcheck.mirrors.fetch.request import FetchedFile, TransferOptions, WantedFile
from envcheck.mirrors.fetch.transfer import fetch
from envcheck.mirrors.store.filesystem import (
    READ_ONLY,
    clone_or_copy,
    digest_or_none,
    ignore_read_only,
    link,
    sync_folder,
    temporary,
)

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
# What processes at work keep from eviction: a file each, which its process holds locked.
HELD: Final = "held"


class StoredObject(NamedTuple):
    """One file of the store. `used`: when, in seconds since 1970. `links`: its names, the store's own included."""

    sha256: str
    size: int
    used: float
    links: int


class Store:
    """A store below `root`, which is made when something is put there. Several processes may use it at once.

    `note` hears what a person reads who waits for another of them.
    """

    def __init__(self, root: Path, note: Callable[[str], None] = lambda _: None) -> None:
        if root.exists() and not root.is_dir():
            message = f"{root} is a file"
            raise ConfigError(message, fix="give --store a directory")
        self.root = root.absolute()
        self._note = note

    @property
    def begun(self) -> bool:
        """Tell whether anything was ever put there: a directory of somebody else's files is no store."""
        return any((self.root / name).is_dir() for name in ("sha256", "versions", HELD))

    def path(self, sha256: str) -> Path:
        """Return where an object is, or would be."""
        return self.root / "sha256" / sha256[:2] / sha256

    def has(self, sha256: str) -> bool:
        """Tell whether an object is there."""
        path = self.path(sha256)
        return path.is_file() and not path.is_symlink()

    def objects(self) -> list[StoredObject]:
        """Return what is there, by hash; what is being fetched is not."""
        stored = []
        for path in sorted(self.root.glob("sha256/??/*")):
            if _DIGEST.fullmatch(path.name):
                with contextlib.suppress(FileNotFoundError):
                    stat = path.stat()
                    stored.append(StoredObject(path.name, stat.st_size, self._used(path), stat.st_nlink))
        return stored

    def name(self, sha256: str) -> str | None:
        """Return the file name an object was put under, or None."""
        try:
            info = json.loads(self._info(sha256).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        name = info.get("name") if isinstance(info, dict) else None
        return name if isinstance(name, str) else None

    def put(self, target: WantedFile, options: TransferOptions) -> FetchedFile:
        """Fetch an object, going on with what is there; `wanted.path` says no more than what it is called."""
        path = self.path(target.sha256)
        if path.is_symlink():
            path.unlink()
        try:
            fetched = fetch(dataclasses.replace(target, path=path), options)
        except (PromiseError, UnavailableError) as error:
            message = error.message.replace(f"{target.sha256}: ", f"{target.path.name}: ", 1)
            raise type(error)(message, fix=error.fix) from error
        self._make_read_only(target.sha256)
        self.touch(target.sha256, target.path.name)
        return fetched

    def adopt(self, source: Path, sha256: str, name: str | None = None) -> None:
        """Take a copy of a file on this machine; raise PromiseError when the copy has another hash."""
        with self._draft(sha256) as draft, source.open("rb") as file, draft.open("r+b") as copy:
            clone_or_copy(file.fileno(), copy.fileno())
            self._settle(draft, copy.fileno(), sha256, source)
        self.touch(sha256, name or source.name)

    def take(self, source: Path, sha256: str, name: str) -> None:
        """Move a file of this file system in, whose hash the caller has just compared.

        A sound object that is there already stays: versions hold links to it, and another would take its room twice.
        """
        if self.sound(sha256):
            source.unlink()
            self.touch(sha256, name)
            return
        source.chmod(READ_ONLY)
        self.path(sha256).parent.mkdir(parents=True, exist_ok=True)
        source.replace(self.path(sha256))
        sync_folder(self.path(sha256).parent)
        self.touch(sha256, name)

    def add(self, content: bytes, name: str) -> str:
        """Put bytes there and return their hash."""
        sha256 = hashlib.sha256(content).hexdigest()
        if not self.sound(sha256):
            with self._draft(sha256) as draft, draft.open("r+b", buffering=0) as file:
                file.write(content)
                self._settle(draft, file.fileno(), sha256, Path(name))
        self.touch(sha256, name)
        return sha256

    def view(self, sha256: str, target: Path) -> None:
        """Give an object another name: a hard link, or a reflink or copy where the file system has no link for it.

        Raise UnavailableError when it is not there (any more).
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(f".link-{os.getpid()}-{time.monotonic_ns()}")
        try:
            link(self.path(sha256), fresh)
            fresh.replace(target)
        except FileNotFoundError as error:
            message = f"{self.root}: there is no {self.name(sha256) or sha256}"
            raise UnavailableError(message, fix="fetch it again") from error
        finally:
            fresh.unlink(missing_ok=True)  # two names of one file stay two names when one is renamed to the other
        self.touch(sha256)

    def touch(self, sha256: str, name: str | None = None) -> None:
        """Note that an object was used now, and what it is called. A store that may not be written is left as it is."""
        info = self._info(sha256)
        name = name or self.name(sha256)
        with ignore_read_only():
            info.parent.mkdir(parents=True, exist_ok=True)
            safe_files.put(info, json.dumps({"name": name}).encode() + b"\n", durable=False)

    def evict(self, sha256: str) -> None:
        """Take an object's name and what is known of it away."""
        self.path(sha256).unlink(missing_ok=True)
        self._info(sha256).unlink(missing_ok=True)

    def digest(self, sha256: str) -> tuple[str | None, int]:
        """Return the hash that an object really has, None where the disk cannot read it, and its inode."""
        file = self._open(sha256)
        try:
            return digest_or_none(file), os.fstat(file).st_ino
        finally:
            os.close(file)

    def sound(self, sha256: str) -> bool:
        """Tell whether an object is there and has its hash."""
        try:
            return self.digest(sha256)[0] == sha256
        except FileNotFoundError:
            return False

    def quarantine(self, sha256: str, inode: int) -> Path | None:
        """Move an object away, unless somebody has put another one there meanwhile."""
        path = self.path(sha256)
        to = self.root / "quarantine" / f"{sha256}.{inode}"
        to.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.stat().st_ino != inode:
            return None
        path.replace(to)
        return to

    @contextlib.contextmanager
    def held(self, digests: Iterable[str] = ()) -> Iterator[None]:
        """Keep these from eviction until the block or its process ends, and whatever is put or used meanwhile.

        One that is under way is waited for. Of a store that may not be written, nothing is evicted from here either.
        """
        folder = self.root / HELD
        with contextlib.ExitStack() as stack:
            with ignore_read_only(), self.locked():
                folder.mkdir(exist_ok=True)
                file = stack.enter_context(tempfile.NamedTemporaryFile("w", dir=folder, encoding="ascii"))
                fcntl.flock(file, fcntl.LOCK_EX)
                file.write("".join(f"{digest}\n" for digest in digests))
                file.flush()
            yield

    @contextlib.contextmanager
    def locked(self, name: str = "lock", note: Callable[[str], None] | None = None) -> Iterator[None]:
        """Hold what publishes and what evicts apart. The lock is the kernel's: it ends with whoever held it."""
        self.root.mkdir(parents=True, exist_ok=True)
        file = os.open(self.root / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                (note or self._note)("another process publishes, imports or evicts: waiting for it")
                fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)

    def _open(self, sha256: str) -> int:
        """Open an object for reading; what is a link is none. Raise FileNotFoundError."""
        path = self.path(sha256)
        try:
            return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise FileNotFoundError(errno.ENOENT, "a link is no object of a store", str(path)) from error

    def _make_read_only(self, sha256: str) -> None:
        file = self._open(sha256)
        try:
            os.fchmod(file, READ_ONLY)
        finally:
            os.close(file)

    def _info(self, sha256: str) -> Path:
        return self.root / "info" / sha256[:2] / f"{sha256}.json"

    def _used(self, path: Path) -> float:
        try:
            return self._info(path.name).stat().st_mtime
        except FileNotFoundError:
            return path.stat().st_mtime

    @contextlib.contextmanager
    def _draft(self, sha256: str) -> Iterator[Path]:
        """Give an empty file beside an object's place; what was not settled ends with the block."""
        folder = self.path(sha256).parent
        folder.mkdir(parents=True, exist_ok=True)
        with temporary(folder) as draft:
            yield draft

    def _settle(self, draft: Path, file: int, sha256: str, source: Path) -> None:
        """Hash what the disk gives back of a draft, and name it if it is what it must be."""
        if digest_or_none(file) != sha256:
            message = f"{source}: it has another sha256 than {sha256}"
            raise PromiseError(message, fix="use the right file, or leave it out")
        os.fsync(file)
        os.fchmod(file, READ_ONLY)
        draft.replace(self.path(sha256))
        sync_folder(draft.parent)
