"""Fetch one file whose sha256 is known: whole at its name, or not there."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from envcheck.errors import ConfigError, EnvcheckError, PromiseError, UnavailableError
from envcheck.mirrors.fetch import whole
from envcheck.mirrors.fetch.disk import partial_file
from envcheck.mirrors.fetch.disk.running_hash import digest_of
from envcheck.mirrors.fetch.download import Job
from envcheck.mirrors.fetch.plan import range_responses
from envcheck.mirrors.fetch.request import Fetched, Means, Wanted
from envcheck.mirrors.fetch.retries import LaterError, NobodyError, in_turn
from envcheck.mirrors.net.advice import joined, of_status
from envcheck.mirrors.net.client import NetworkError
from envcheck.mirrors.net.urls import host_of


def fetch(wanted: Wanted, means: Means, *, durable: bool = True) -> Fetched:
    """Put the file at its path, whole and of that hash, or leave nothing there.

    `durable`: it is on the disk when this returns. Else a small file may not be: the caller has `disk.settle` called.

    What an earlier process left is gone on with; a second process waits for the first. Raise PromiseError when what
    the sources have is not the file, UnavailableError when they cannot be reached or the disk has no room, StoppedError
    when the means were told to stop.
    """
    if wanted.path.is_dir():
        message = f"{wanted.path}: a directory has the name of the file"
        raise ConfigError(message, fix="name another directory (--output)")
    wanted.path.parent.mkdir(parents=True, exist_ok=True)
    part = partial_file.part_of(wanted)
    with partial_file.locked(part, means) as file:
        try:
            return _put(wanted, means, part, file, durable=durable)
        except OSError as error:
            # A full disk may be told when the file is synced (delayed allocation, NFS), and then without a name.
            size = max(os.fstat(file).st_size, wanted.size or 0)
            raise partial_file.disk_error(error, wanted.path, size) from error


def _put(wanted: Wanted, means: Means, part: Path, file: int, *, durable: bool) -> Fetched:
    began = time.monotonic()
    size = _already(wanted)
    if size is not None:
        partial_file.discard(part)
        return Fetched(wanted.path, size, 0, size, time.monotonic() - began, {})
    if os.path.lexists(wanted.path):
        means.note(_other(wanted.path))
    taken = partial_file.taken(wanted.local, part, wanted.path, lambda copy: _is(wanted, copy))
    if taken is not None:
        return Fetched(wanted.path, taken, 0, taken, time.monotonic() - began, {"this machine": taken})
    if whole.fits(wanted) and whole.empty(file):
        small = whole.bring(wanted, means, file)
        if small is not None:
            partial_file.publish(part, file, wanted.path, durable=durable)
            seconds = time.monotonic() - began
            return Fetched(wanted.path, small.size, small.moved, 0, seconds, {small.host: small.size})
    job = _done(wanted, means, part, file)
    partial_file.publish(part, file, wanted.path)
    return Fetched(wanted.path, job.size, job.moved, job.found, time.monotonic() - began, job.sources())


def _done(wanted: Wanted, means: Means, part: Path, file: int) -> Job:
    """Return the finished job. Where nothing but the sources tell a size, each size that one tells is tried.

    A size that is wrong, or that the disk has no room for, is a claim of one source: the next one is tried.
    """
    failed: EnvcheckError | None = None
    for size in _candidates(wanted, means, part) if wanted.size is None else [wanted.size]:
        ended = _ran(wanted, means, part, file, size)
        if isinstance(ended, Job):
            return ended
        failed = failed if isinstance(failed, PromiseError) else ended
    if isinstance(failed, PromiseError):
        partial_file.discard(part)
    raise failed or AssertionError


def _ran(wanted: Wanted, means: Means, part: Path, file: int, size: int) -> Job | EnvcheckError:
    try:
        job = Job(wanted, means, part, file, size)
        with contextlib.closing(job):
            job.run()
    except (PromiseError, UnavailableError) as error:
        return error
    return job


def _candidates(wanted: Wanted, means: Means, part: Path) -> Iterator[int]:
    """Yield the size of what an earlier run has begun, where it has a piece, then those that the sources tell."""
    header, pieces = partial_file.noted(part)
    begun = header.size if header is not None and header.sha256 == wanted.sha256 and pieces else None
    if begun is not None:
        yield begun
    yield from (size for size in _sizes(wanted, means) if size != begun)


def least(wanted: Wanted, means: Means) -> int | None:
    """Return the least size that a source tells, in bytes; None where none tells one."""
    sizes: list[int] = []
    for url in wanted.urls:
        with contextlib.suppress(NetworkError):
            sizes.append(_told(url, means))
    return min(sizes, default=None)


def _sizes(wanted: Wanted, means: Means) -> Iterator[int]:
    """Yield the sizes that the sources tell, each once. Raise UnavailableError where none tells one.

    Who is busy is waited for where no other source tells one.
    """
    try:
        first, teller = in_turn(wanted.urls, lambda url: _told(url, means), means.stop)
    except NobodyError as error:
        reasons = "; ".join(f"{host_of(url)}: {reason}" for url, reason in error.reasons.items())
        message = f"{wanted.path.name}: no source gives it: {reasons or 'there is none to ask'}"
        raise UnavailableError(message, fix=joined(reason.fix for reason in error.reasons.values())) from error
    yield first
    sizes = {first}
    for url in wanted.urls:
        with contextlib.suppress(NetworkError):
            if url != teller and (told := _told(url, means)) not in sizes:
                sizes.add(told)
                yield told


def _told(url: str, means: Means) -> int:
    """Return the size that a source tells. Raise NetworkError where it tells none, LaterError where it may later."""
    with means.client.get(url, {"Range": "bytes=0-0"}) as answer:
        size = range_responses.total(answer.status, answer.headers)
        if size is not None:
            return size
        busy = range_responses.busy(answer.status, answer.headers, time.time())
        if busy is None:
            message = f"it answers {answer.status} and no size"
            raise NetworkError(message, of_status(answer.status))
        means.note(f"{host_of(url)}: {busy.reason}")
        raise LaterError(busy.reason, busy.after)


def _already(wanted: Wanted) -> int | None:
    """Return the size of a file that is there and is the right one."""
    return wanted.path.stat().st_size if _is(wanted, wanted.path) else None


def _other(path: Path) -> str:
    """Return what a person reads of another file at the name: a link's target is not touched."""
    if path.is_symlink():
        return f"{path}: is a link to another file; what is fetched replaces the link alone"
    return f"{path}: is another file; what is fetched replaces it, once it is whole and of its hash"


def _is(wanted: Wanted, path: Path) -> bool:
    """Tell whether a file is there and has the hash."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return False
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return False
        size = os.fstat(file).st_size
        return wanted.size in {None, size} and digest_of(file, size) == wanted.sha256
    finally:
        os.close(file)
