"""A revision as huggingface_hub wants it to lie: blobs by their ETag, and a snapshot of links that appears whole."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from envcheck.errors import PromiseError, UnavailableError
from envcheck.mirrors import hf
from envcheck.mirrors.asking import NobodyError, in_turn, text
from envcheck.mirrors.fetch import disk
from envcheck.mirrors.fetch.wanted import Fetched, Means, StoppedError
from envcheck.mirrors.http import Client, NetworkError
from envcheck.mirrors.remedies import joined
from envcheck.mirrors.urls import host_of

# What a file system without links says (FAT, SMB without its own): there each file is copied.
_NO_LINKS: Final = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}


class WrongError(NetworkError):
    """A source whose file has another hash."""


def small(client: Client, url: str, file: hf.Entry) -> bytes:
    """Return a file of which only git's hash is known. Raise WrongError for another file."""
    content, _ = text(client, url, file.size + 1)
    if len(content) != file.size or hf.git_sha1(content) != file.sha1:
        message = "it has another hash than it should have"
        raise WrongError(message)
    return content


def refused(path: str, error: NobodyError) -> PromiseError | UnavailableError:
    """Return what a user reads of a small file that nobody gave: a wrong one says more than one that is not there."""
    message = f"{path}: {'; '.join(f'{host_of(url)}: {reason}' for url, reason in error.reasons.items())}"
    if any(isinstance(reason, WrongError) for reason in error.reasons.values()):
        return PromiseError(message, fix="the mirror serves wrong bytes: compare with the origin, purge the mirror")
    return UnavailableError(message, fix=joined((why.fix for why in error.reasons.values()), ", or run it again"))


def blob(file: hf.Entry, urls: Sequence[str], blobs: Path, means: Means) -> Fetched:
    """Put a file outside LFS at its blob, unless it is there; a second process waits for the first."""
    path, began = blobs / file.blob, time.monotonic()
    part = path.with_name(f".{path.name}.{path.name[:8]}.part")
    if means.stop.is_set():
        raise StoppedError
    with disk.locked(part, means) as handle:
        if path.is_file() and path.stat().st_size == file.size and hf.git_sha1(path.read_bytes()) == file.sha1:
            disk.discard(part)
            return Fetched(path, file.size, 0, file.size, 0.0, {})
        try:
            content, url = in_turn(urls, lambda url: small(means.client, url, file), means.stop)
        except NobodyError as error:
            raise refused(file.path, error) from error
        try:
            os.ftruncate(handle, 0)
            disk.write(handle, content, 0)
            disk.publish(part, handle, path)
        except OSError as error:
            raise disk.disk_error(error, path, file.size) from error
    return Fetched(path, file.size, len(content), 0, time.monotonic() - began, {host_of(url): len(content)})


def link(wanted: hf.Revision, folder: Path) -> None:
    """Make the snapshot beside its name, and name it when it is whole; one that is there is completed."""
    snapshots = folder / "snapshots"
    with _held(snapshots) as directory:
        snapshot = snapshots / wanted.revision
        fresh = snapshots / f".{wanted.revision}.new"
        shutil.rmtree(fresh, ignore_errors=True)
        for file in wanted.files:
            _one(folder / "blobs" / file.blob, (snapshot if snapshot.exists() else fresh) / file.path)
        if not snapshot.exists():
            fresh.rename(snapshot)
        os.fsync(directory)


def name(folder: Path, ref: str, commit: str) -> None:
    """Have a branch or tag lead to a commit, which is what huggingface_hub looks up without a network."""
    path = folder / "refs" / ref
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with fresh.open("w") as file:
        file.write(commit)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


@contextlib.contextmanager
def _held(directory: Path) -> Iterator[int]:
    """Hold a directory alone among those who link into it. The lock is the kernel's: it ends with whoever held it."""
    directory.mkdir(parents=True, exist_ok=True)
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    finally:
        os.close(handle)


def _one(target: Path, at: Path) -> None:
    """Have `at` link to `target`, relatively, so that the cache can be moved as a whole."""
    at.parent.mkdir(parents=True, exist_ok=True)
    relative = Path(os.path.relpath(target, at.parent))
    if at.is_symlink() and at.readlink() == relative:
        return
    fresh = at.with_name(f".{at.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    try:
        fresh.symlink_to(relative)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(target, fresh)
    fresh.replace(at)
