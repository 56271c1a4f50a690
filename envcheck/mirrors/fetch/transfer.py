"""Fetch one file whose sha256 is known. Its name appears only when the file is complete."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
import time
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

from envcheck.errors import ConfigError, EnvcheckError, PromiseError, UnavailableError
from envcheck.mirrors.fetch import whole
from envcheck.mirrors.fetch.disk import partial_file
from envcheck.mirrors.fetch.disk.running_hash import digest_of
from envcheck.mirrors.fetch.download import FileDownload
from envcheck.mirrors.fetch.plan import range_responses
from envcheck.mirrors.fetch.request import FetchedFile, TransferOptions, WantedFile
from envcheck.mirrors.fetch.retries import NoSourceError, RetryLaterError, StatusError, no_answer_error, try_sources
from envcheck.mirrors.net.advice import joined_advice
from envcheck.mirrors.net.network_errors import NetworkError
from envcheck.mirrors.net.urls import host_of


def fetch(target: WantedFile, options: TransferOptions, *, durable: bool = True) -> FetchedFile:
    """Fetch the file and verify its hash, or leave nothing at its path.

    `durable`: the file is synced to the disk when this returns. Otherwise the caller must call `sync_folders`.

    A new process resumes what an earlier one left; a second process waits for the first. Raise PromiseError if the
    sources have other bytes, UnavailableError if no source can be reached or the disk is full, StoppedError if
    `options.stop` is set.
    """
    if target.path.is_dir():
        message = f"{target.path} is a directory, not a file"
        raise ConfigError(message, fix="choose another directory (--output)")
    target.path.parent.mkdir(parents=True, exist_ok=True)
    part = partial_file.part_path(target)
    with partial_file.locked(part, options) as file:
        try:
            return _fetch_locked(target, options, part, file, durable=durable)
        except OSError as error:
            # A full disk may be reported only by the sync (delayed allocation, NFS), and then without a file name.
            size = max(os.fstat(file).st_size, target.size or 0)
            raise partial_file.disk_error(error, target.path, size) from error


def _fetch_locked(target: WantedFile, options: TransferOptions, part: Path, file: int, *, durable: bool) -> FetchedFile:
    began = time.monotonic()
    size = _present_size(target)
    if size is not None:
        partial_file.discard(part)
        return FetchedFile(target.path, size, 0, size, time.monotonic() - began, {})
    if os.path.lexists(target.path):
        options.note(_replacement_note(target.path))
    linked_size = partial_file.take_local_copy(target.local, part, target.path, lambda copy: _has_hash(target, copy))
    if linked_size is not None:
        return FetchedFile(
            target.path, linked_size, 0, linked_size, time.monotonic() - began, {"this machine": linked_size}
        )
    target = _silent_last(target, options)
    if whole.may_be_small(target) and whole.is_empty(file):
        small = whole.fetch_small(target, options, file)
        if small is not None:
            partial_file.publish(part, file, target.path, durable=durable)
            seconds = time.monotonic() - began
            return FetchedFile(target.path, small.size, small.moved, 0, seconds, {small.host: small.size})
    job = _download(target, options, part, file)
    partial_file.publish(part, file, target.path)
    return FetchedFile(target.path, job.size, job.moved, job.found, time.monotonic() - began, job.sources())


def _download(target: WantedFile, options: TransferOptions, part: Path, file: int) -> FileDownload:
    """Return the finished download. If the size is unknown, try each size that a source reports.

    A wrong or too large size is the claim of one source, so the next size is tried.
    """
    failed: EnvcheckError | None = None
    for size in _candidate_sizes(target, options, part) if target.size is None else [target.size]:
        ended = _try_size(target, options, part, file, size)
        if isinstance(ended, FileDownload):
            return ended
        failed = failed if isinstance(failed, PromiseError) else ended
    if isinstance(failed, PromiseError):
        partial_file.discard(part)
    raise failed or AssertionError


def _try_size(
    target: WantedFile, options: TransferOptions, part: Path, file: int, size: int
) -> FileDownload | EnvcheckError:
    try:
        job = FileDownload(_silent_last(target, options), options, part, file, size)
    except UnavailableError as error:
        if target.size is not None:
            return error
        message = f"{error.message} (the size that a source claims, and it may be wrong)"
        return UnavailableError(message, fix=f"{error.fix}, or {target.other_fix}")
    try:
        with contextlib.closing(job):
            job.run()
    except (PromiseError, UnavailableError) as error:
        return error
    return job


def _silent_last(target: WantedFile, options: TransferOptions) -> WantedFile:
    """Return what is wanted, its sources on silent hosts after the others."""
    return dataclasses.replace(target, urls=options.client.silence.last(target.urls))


def _candidate_sizes(target: WantedFile, options: TransferOptions, part: Path) -> Iterator[int]:
    """Yield the size of an unfinished file that has a complete piece, then the sizes that the sources report."""
    header, pieces = partial_file.read_journal(part)
    begun = header.size if header is not None and header.sha256 == target.sha256 and pieces else None
    if begun is not None:
        yield begun
    yield from (size for size in _source_sizes(target, options) if size != begun)


def smallest_size(target: WantedFile, options: TransferOptions) -> int | None:
    """Return the smallest size that a source reports, in bytes, or None."""
    sizes: list[int] = []
    for url in target.urls:
        with contextlib.suppress(NetworkError):
            sizes.append(_size_from(url, options))
    return min(sizes, default=None)


def _source_sizes(target: WantedFile, options: TransferOptions) -> Iterator[int]:
    """Yield each distinct size that the sources report. Raise UnavailableError if no source reports one.

    Wait for a busy source only if no other source reports a size.
    """
    try:
        first, first_url = try_sources(target.urls, lambda url: _size_from(url, options), options.stop, announce=False)
    except NoSourceError as error:
        reasons = "; ".join(f"{host_of(url)}: {reason}" for url, reason in error.reasons.items())
        message = f"{target.path.name}: no source can provide it: {reasons or 'no source is known'}"
        retry_later = "" if all(error.missing) else ", or run it again later"
        fix = joined_advice((reason.fix for reason in error.reasons.values()), retry_later, other=target.other_fix)
        raise no_answer_error(message, fix, error.missing) from error
    yield first
    sizes = {first}
    for url in target.urls:
        with contextlib.suppress(NetworkError):
            if url != first_url and (size := _size_from(url, options)) not in sizes:
                sizes.add(size)
                yield size


def _size_from(url: str, options: TransferOptions) -> int:
    """Return the size that a source reports. Raise NetworkError, or RetryLaterError if the source is busy."""
    with options.client.get(url, {"Range": "bytes=0-0"}) as answer:
        size = range_responses.file_size(answer.status, answer.headers)
        if size is not None:
            return size
        busy = range_responses.busy_failure(answer.status, answer.headers, time.time())
        if busy is None:
            if answer.status in {HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT}:
                message = f"it answers {answer.status} without the size of the file"
                raise NetworkError(message)
            raise StatusError(answer.status)
        options.note(f"{host_of(url)}: {busy.reason}")
        raise RetryLaterError(busy.reason, busy.after)


def _present_size(target: WantedFile) -> int | None:
    """Return the size of the file if it is present and has the hash, else None."""
    return target.path.stat().st_size if _has_hash(target, target.path) else None


def _replacement_note(path: Path) -> str:
    """Return the note about a different file at this path. The target of a link is not changed."""
    if path.is_symlink():
        return f"{path} is a link to another file: the download replaces the link and leaves the other file alone"
    return f"{path} is a different file: the download replaces it once its hash is verified"


def _has_hash(target: WantedFile, path: Path) -> bool:
    """Tell whether a file exists and has the hash."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return False
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return False
        size = os.fstat(file).st_size
        return target.size in {None, size} and digest_of(file, size) == target.sha256
    finally:
        os.close(file)
