"""Fetch one file whose sha256 is known: whole at its name, or not there."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from envcheck.errors import ConfigError, EnvcheckError, PromiseError, UnavailableError
from envcheck.mirrors.fetch import whole
from envcheck.mirrors.fetch.disk import partial_file
from envcheck.mirrors.fetch.disk.running_hash import digest_of
from envcheck.mirrors.fetch.download import FileDownload
from envcheck.mirrors.fetch.plan import range_responses
from envcheck.mirrors.fetch.request import FetchedFile, TransferOptions, WantedFile
from envcheck.mirrors.fetch.retries import NoSourceError, RetryLaterError, try_sources
from envcheck.mirrors.net.advice import joined_advice, status_advice
from envcheck.mirrors.net.client import NetworkError
from envcheck.mirrors.net.urls import host_of


def fetch(wanted: WantedFile, means: TransferOptions, *, durable: bool = True) -> FetchedFile:
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
    part = partial_file.part_path(wanted)
    with partial_file.locked(part, means) as file:
        try:
            return _fetch_locked(wanted, means, part, file, durable=durable)
        except OSError as error:
            # A full disk may be told when the file is synced (delayed allocation, NFS), and then without a name.
            size = max(os.fstat(file).st_size, wanted.size or 0)
            raise partial_file.disk_error(error, wanted.path, size) from error


def _fetch_locked(wanted: WantedFile, means: TransferOptions, part: Path, file: int, *, durable: bool) -> FetchedFile:
    began = time.monotonic()
    size = _present_size(wanted)
    if size is not None:
        partial_file.discard(part)
        return FetchedFile(wanted.path, size, 0, size, time.monotonic() - began, {})
    if os.path.lexists(wanted.path):
        means.note(_replacement_note(wanted.path))
    taken = partial_file.take_local_copy(wanted.local, part, wanted.path, lambda copy: _has_hash(wanted, copy))
    if taken is not None:
        return FetchedFile(wanted.path, taken, 0, taken, time.monotonic() - began, {"this machine": taken})
    wanted = _silent_last(wanted, means)
    if whole.may_be_small(wanted) and whole.is_empty(file):
        small = whole.fetch_small(wanted, means, file)
        if small is not None:
            partial_file.publish(part, file, wanted.path, durable=durable)
            seconds = time.monotonic() - began
            return FetchedFile(wanted.path, small.size, small.moved, 0, seconds, {small.host: small.size})
    job = _download(wanted, means, part, file)
    partial_file.publish(part, file, wanted.path)
    return FetchedFile(wanted.path, job.size, job.moved, job.found, time.monotonic() - began, job.sources())


def _download(wanted: WantedFile, means: TransferOptions, part: Path, file: int) -> FileDownload:
    """Return the finished job. Where nothing but the sources tell a size, each size that one tells is tried.

    A size that is wrong, or that the disk has no room for, is a claim of one source: the next one is tried.
    """
    failed: EnvcheckError | None = None
    for size in _candidate_sizes(wanted, means, part) if wanted.size is None else [wanted.size]:
        ended = _try_size(wanted, means, part, file, size)
        if isinstance(ended, FileDownload):
            return ended
        failed = failed if isinstance(failed, PromiseError) else ended
    if isinstance(failed, PromiseError):
        partial_file.discard(part)
    raise failed or AssertionError


def _try_size(
    wanted: WantedFile, means: TransferOptions, part: Path, file: int, size: int
) -> FileDownload | EnvcheckError:
    try:
        job = FileDownload(_silent_last(wanted, means), means, part, file, size)
        with contextlib.closing(job):
            job.run()
    except (PromiseError, UnavailableError) as error:
        return error
    return job


def _silent_last(wanted: WantedFile, means: TransferOptions) -> WantedFile:
    """Return what is wanted, its sources on silent hosts after the others."""
    return dataclasses.replace(wanted, urls=means.client.silence.last(wanted.urls))


def _candidate_sizes(wanted: WantedFile, means: TransferOptions, part: Path) -> Iterator[int]:
    """Yield the size of what an earlier run has begun, where it has a piece, then those that the sources tell."""
    header, pieces = partial_file.read_journal(part)
    begun = header.size if header is not None and header.sha256 == wanted.sha256 and pieces else None
    if begun is not None:
        yield begun
    yield from (size for size in _source_sizes(wanted, means) if size != begun)


def smallest_size(wanted: WantedFile, means: TransferOptions) -> int | None:
    """Return the least size that a source tells, in bytes; None where none tells one."""
    sizes: list[int] = []
    for url in wanted.urls:
        with contextlib.suppress(NetworkError):
            sizes.append(_size_from(url, means))
    return min(sizes, default=None)


def _source_sizes(wanted: WantedFile, means: TransferOptions) -> Iterator[int]:
    """Yield the sizes that the sources tell, each once. Raise UnavailableError where none tells one.

    Who is busy is waited for where no other source tells one.
    """
    try:
        first, teller = try_sources(wanted.urls, lambda url: _size_from(url, means), means.stop, announce=False)
    except NoSourceError as error:
        reasons = "; ".join(f"{host_of(url)}: {reason}" for url, reason in error.reasons.items())
        message = f"{wanted.path.name}: no source gives it: {reasons or 'there is none to ask'}"
        raise UnavailableError(message, fix=joined_advice(reason.fix for reason in error.reasons.values())) from error
    yield first
    sizes = {first}
    for url in wanted.urls:
        with contextlib.suppress(NetworkError):
            if url != teller and (told := _size_from(url, means)) not in sizes:
                sizes.add(told)
                yield told


def _size_from(url: str, means: TransferOptions) -> int:
    """Return the size that a source tells. Raise NetworkError where it tells none, LaterError where it may later."""
    with means.client.get(url, {"Range": "bytes=0-0"}) as answer:
        size = range_responses.file_size(answer.status, answer.headers)
        if size is not None:
            return size
        busy = range_responses.busy_failure(answer.status, answer.headers, time.time())
        if busy is None:
            message = f"it answers {answer.status} and no size"
            raise NetworkError(message, status_advice(answer.status))
        means.note(f"{host_of(url)}: {busy.reason}")
        raise RetryLaterError(busy.reason, busy.after)


def _present_size(wanted: WantedFile) -> int | None:
    """Return the size of a file that is there and is the right one."""
    return wanted.path.stat().st_size if _has_hash(wanted, wanted.path) else None


def _replacement_note(path: Path) -> str:
    """Return what a person reads of another file at the name: a link's target is not touched."""
    if path.is_symlink():
        return f"{path}: is a link to another file; what is fetched replaces the link alone"
    return f"{path}: is another file; what is fetched replaces it, once it is whole and of its hash"


def _has_hash(wanted: WantedFile, path: Path) -> bool:
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
