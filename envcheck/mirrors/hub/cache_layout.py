"""Write a revision in huggingface_hub's cache layout: blobs named by ETag, and a snapshot of links to them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from envcheck import safe_files
from envcheck.errors import PromiseError, UnavailableError
from envcheck.mirrors.fetch.disk import partial_file
from envcheck.mirrors.fetch.request import FetchedFile, StoppedError, TransferOptions
from envcheck.mirrors.fetch.retries import NoSourceError, RetryLaterError, no_answer_error, open_response, try_sources
from envcheck.mirrors.hub import revision as hub_revision
from envcheck.mirrors.net.advice import joined_advice
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.net.network_errors import NetworkError, SlowError
from envcheck.mirrors.net.urls import host_of

# Errors of a file system without symlinks (FAT, some SMB): each file is copied there.
_NO_LINKS: Final = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}
_AT_ONCE: Final = 1 << 17


class WrongHashError(NetworkError):
    """A source serves a file that has another hash."""


def read_small_file(client: Client, url: str, file: hub_revision.HubFile, keep: Callable[[bytes], object]) -> None:
    """Download a file of which only git's hash is known, and pass each chunk to `keep`.

    Raises WrongHashError if the bytes have another hash, RetryLaterError if the connection failed.
    """
    hasher, left = hub_revision.git_hasher(file.size), file.size
    with open_response(client, url) as answer:
        try:
            for chunk in answer.decoded_chunks(_AT_ONCE):
                left -= len(chunk)
                if left < 0:
                    break
                hasher.update(chunk)
                keep(chunk)
        except NetworkError as error:
            raise RetryLaterError(str(error), slow=isinstance(error, SlowError)) from error
    if left or hasher.hexdigest() != file.sha1:
        message = "it has another hash than it should have"
        raise WrongHashError(message)


def small_file_error(path: str, error: NoSourceError) -> PromiseError | UnavailableError:
    """Return the error for a small file that no source gave: PromiseError if any of them served wrong bytes."""
    message = f"{path}: {'; '.join(f'{host_of(url)}: {reason}' for url, reason in error.reasons.items())}"
    if any(isinstance(reason, WrongHashError) for reason in error.reasons.values()):
        return PromiseError(message, fix="the mirror serves wrong bytes: compare with the origin, purge the mirror")
    fix = joined_advice((why.fix for why in error.reasons.values()), ", or run it again")
    return no_answer_error(message, fix, error.missing)


def fetch_blob(file: hub_revision.HubFile, urls: Sequence[str], blobs: Path, options: TransferOptions) -> FetchedFile:
    """Download a file outside LFS to its blob unless it is intact there; a second process waits for the first."""
    path, began = blobs / file.blob, time.monotonic()
    part = path.with_name(f".{path.name}.{path.name[:8]}.part")
    if options.stop.is_set():
        raise StoppedError
    with partial_file.locked(part, options) as handle:
        if _is_intact(path, file):
            partial_file.discard(part)
            return FetchedFile(path, file.size, 0, file.size, 0.0, {})

        def keep(chunk: bytes) -> None:
            if options.stop.is_set():
                raise StoppedError
            options.limiter.take(len(chunk), options.stop)
            safe_files.write(handle, chunk)

        def attempt(url: str) -> None:
            os.ftruncate(handle, 0)
            os.lseek(handle, 0, os.SEEK_SET)
            read_small_file(options.client, url, file, keep)

        try:
            _, url = try_sources(urls, attempt, options.stop)
            partial_file.publish(part, handle, path)
        except NoSourceError as error:
            raise small_file_error(file.path, error) from error
        except OSError as error:
            raise partial_file.disk_error(error, path, file.size) from error
    return FetchedFile(path, file.size, file.size, 0, time.monotonic() - began, {host_of(url): file.size})


def _is_intact(path: Path, file: hub_revision.HubFile) -> bool:
    """Tell whether a blob is a regular file with the file's size and git hash."""
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    hasher = hub_revision.git_hasher(file.size)
    with path.open("rb") as stream:
        while block := stream.read(_AT_ONCE):
            hasher.update(block)
    return hasher.hexdigest() == file.sha1


def link_snapshot(revision: hub_revision.Revision, folder: Path) -> None:
    """Make the snapshot under another name, and rename it when it is complete; complete an existing one."""
    snapshots = safe_files.directory(folder.parent, folder.name, "snapshots")
    with _directory_lock(snapshots) as directory:
        snapshot = snapshots / revision.revision
        fresh = snapshots / f".{revision.revision}.new"
        _clear(fresh)
        into = snapshot if os.path.lexists(snapshot) else fresh
        folders = {parent: safe_files.directory(snapshots, into.name, *parent.parts) for parent in _parents(revision)}
        for file in revision.files:
            path = PurePosixPath(file.path)
            _link_or_copy(folder / "blobs" / file.blob, folders[path.parent] / path.name)
        if into is fresh:
            fresh.rename(snapshot)
        os.fsync(directory)


def _parents(revision: hub_revision.Revision) -> set[PurePosixPath]:
    return {PurePosixPath(file.path).parent for file in revision.files}


def _clear(fresh: Path) -> None:
    """Remove the unfinished snapshot of an interrupted run; remove a symlink, not its target."""
    if fresh.is_symlink() or fresh.is_file():
        fresh.unlink()
    shutil.rmtree(fresh, ignore_errors=True)


def write_ref(folder: Path, ref: str, commit: str) -> None:
    """Write the commit of a branch or tag, which huggingface_hub reads when it has no network."""
    *above, last = ref.split("/")
    safe_files.put(safe_files.directory(folder.parent, folder.name, "refs", *above) / last, commit.encode())


@contextlib.contextmanager
def _directory_lock(directory: Path) -> Iterator[int]:
    """Lock a directory while links are made in it. The kernel releases the lock when its process ends."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    finally:
        os.close(handle)


def _link_or_copy(target: Path, at: Path) -> None:
    """Make `at` a relative symlink to `target`, so that the whole cache can be moved; copy if symlinks are missing."""
    relative = Path(os.path.relpath(target, at.parent))
    if at.is_symlink() and at.readlink() == relative:
        return
    try:
        _symlink(relative, at)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        with target.open("rb") as blob_, safe_files.temporary(at.parent, at.name) as (copy, fresh):
            with open(copy, "wb", closefd=False) as stream:
                shutil.copyfileobj(blob_, stream)
            os.fchmod(copy, 0o666 & ~safe_files.umask())
            fresh.replace(at)


def _symlink(relative: Path, at: Path) -> None:
    """Make a symlink; replace an existing file atomically."""
    with contextlib.suppress(FileExistsError):
        at.symlink_to(relative)
        return
    fresh = at.with_name(f".{safe_files.shortened(at.name)}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(relative)
    fresh.replace(at)
