"""Fetch files whose hashes are known. The name of a file appears only when it is complete."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from http import HTTPStatus
from pathlib import Path
from typing import Final

from envcheck.counting import counted
from envcheck.errors import ConfigError, EnvcheckError, NotFoundError, PromiseError, UnavailableError
from envcheck.mirrors.fetch import disk
from envcheck.mirrors.fetch.download import MIB, FileDownload
from envcheck.mirrors.fetch.request import (
    FetchedFile,
    NoSourceError,
    StoppedError,
    TransferOptions,
    WantedFile,
    no_answer_error,
    try_sources,
)
from envcheck.mirrors.net.network_errors import NetworkError, StatusError, is_missing, joined_advice
from envcheck.mirrors.net.responses import file_size
from envcheck.mirrors.net.urls import host_of

AT_ONCE: Final = 4
# Bytes of a file that is fetched in one request, without threads and journal.
_SMALL: Final = MIB
_TICK: Final = 0.2


def fetch(target: WantedFile, options: TransferOptions) -> FetchedFile:
    """Fetch the file and verify its hash, or leave nothing at its path.

    A new process resumes what an earlier one left; a second process waits for the first. Raise PromiseError if the
    sources have other bytes, UnavailableError if no source can be reached or the disk is full, StoppedError if
    `options.stop` is set.
    """
    if target.path.is_dir():
        message = f"{target.path} is a directory, not a file"
        raise ConfigError(message, fix="choose another directory (--output)")
    target.path.parent.mkdir(parents=True, exist_ok=True)
    part = disk.part_path(target)
    with disk.locked(part, target.digest, options) as file:
        try:
            return _fetch_locked(target, options, part, file)
        except OSError as error:
            # A full disk may be reported only by the sync (delayed allocation, NFS), and then without a file name.
            size = max(os.fstat(file).st_size, target.size or 0)
            raise disk.disk_error(error, target.path, size) from error


def _fetch_locked(target: WantedFile, options: TransferOptions, part: Path, file: int) -> FetchedFile:
    began = time.monotonic()
    if disk.has_hash(target, target.path):
        disk.discard(part)
        size = target.path.stat().st_size
        return FetchedFile(target.path, size, 0, size, time.monotonic() - began, {})
    if os.path.lexists(target.path):
        options.note(_replacement_note(target.path))
    linked = disk.take_local_copy(target, part)
    if linked is not None:
        return FetchedFile(target.path, linked, 0, linked, time.monotonic() - began, {"this machine": linked})
    if 0 <= (target.expected or _SMALL + 1) <= _SMALL and not os.fstat(file).st_size:
        small = _fetch_small(target, options, part, file)
        if small is not None:
            return small
    job = _download(target, options, part, file)
    disk.publish(part, file, target.path)
    return FetchedFile(target.path, job.size, job.moved, job.found, time.monotonic() - began, job.sources())


def _replacement_note(path: Path) -> str:
    if path.is_symlink():
        return f"{path} is a link to another file: the download replaces the link and leaves the other file alone"
    return f"{path} is a different file: the download replaces it once its hash is verified"


def _fetch_small(target: WantedFile, options: TransferOptions, part: Path, file: int) -> FetchedFile | None:
    """Fetch the file in one request from the first source that has it at once; None if none has.

    It is not synced to the disk on its own: after a power cut, the next fetch verifies its hash.
    """
    began, moved = time.monotonic(), 0
    for url in target.urls:
        content = _small_content(url, options)
        moved += len(content)
        hasher = target.hasher(len(content))
        hasher.update(content)
        if hasher.hexdigest() == target.digest:
            disk.write(file, content, 0)
            disk.publish(part, file, target.path, durable=False)
            seconds = time.monotonic() - began
            return FetchedFile(target.path, len(content), moved, 0, seconds, {host_of(url): len(content)})
    return None


def _small_content(url: str, options: TransferOptions) -> bytes:
    """Return what a source sends, little more than a small file at most; empty if the request fails or breaks off."""
    received = bytearray()
    with _slot(options), contextlib.suppress(NetworkError), options.client.get(url) as answer:
        if answer.status != HTTPStatus.OK:
            return b""
        for chunk in answer.chunks(options.limiter.chunk):
            if options.stop.is_set():
                raise StoppedError
            options.limiter.take(len(chunk), options.stop)
            received += chunk
            if len(received) > _SMALL:
                break
        return bytes(received)
    return b""


@contextlib.contextmanager
def _slot(options: TransferOptions) -> Iterator[None]:
    while not options.slots.acquire(timeout=_TICK):
        if options.stop.is_set():
            raise StoppedError
    try:
        yield
    finally:
        options.slots.release()


def _download(target: WantedFile, options: TransferOptions, part: Path, file: int) -> FileDownload:
    """Return the finished download: from all sources together or, if its hash is wrong, from each source alone.

    A size that the target does not name is what a source reports, and may be as wrong as its bytes.
    """

    def attempt(urls: Sequence[str], size: int | None) -> FileDownload:
        size = _reported_size(urls, target, options) if size is None else size
        with contextlib.closing(FileDownload(target, options, part, file, size, urls)) as job:
            job.run()
        return job

    # Pieces of an earlier run are of the size that was right then.
    begun, _, pieces = disk.read_journal(part, target.digest)
    together = attempt(target.urls, begun if target.size is None and pieces else target.size)
    if together.sound:
        return together
    gave_all = together.whole_sources()
    for url in [url for url in target.urls if url not in gave_all] or target.urls:
        options.note(f"the file has a wrong hash: fetching all of it from {host_of(url)}")
        disk.journal_path(part).unlink(missing_ok=True)
        with contextlib.suppress(UnavailableError):
            alone = attempt([url], target.size)
            if alone.sound:
                return alone
    disk.discard(part)
    kind = "sha256" if target.sha256 else "git's sha1"
    message = f"{target.path.name}: no source has the file with {kind} {target.digest[:12]}..."
    fix = "check the hash, and compare the mirrors with the origin: they may serve wrong bytes"
    raise PromiseError(message, fix=fix)


def _reported_size(urls: Sequence[str], target: WantedFile, options: TransferOptions) -> int:
    """Return the size that the first source reports that reports any. Raise UnavailableError if none does."""
    try:
        return try_sources(urls, lambda url: _size_from(url, options), options.stop)[0]
    except NoSourceError as error:
        reasons = list(error.reasons.values())
        message = f"{target.path.name}: no source can provide it: {error if reasons else 'no source is known'}"
        retry_later = "" if all(map(is_missing, reasons)) else ", or run it again later"
        fix = joined_advice((reason.fix for reason in reasons), retry_later, other=target.other_fix)
        raise no_answer_error(message, fix, reasons) from error


def _size_from(url: str, options: TransferOptions) -> int:
    with options.client.get(url, {"Range": "bytes=0-0"}) as answer:
        size = file_size(answer.status, answer.headers)
        if size is None and answer.status in {HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT}:
            message = f"it answers {answer.status} without the size of the file"
            raise NetworkError(message)
        if size is None:
            raise StatusError(answer.status, answer.headers)
        return size


def fetch_all(
    targets: Sequence[WantedFile], options: TransferOptions, on_fetched: Callable[[FetchedFile], None]
) -> list[FetchedFile]:
    """Fetch every file, the largest first, and return the results in the order of `targets`.

    Call `on_fetched` for each finished file. Raise the error of a file after the other files have ended. An interrupt
    stops all transfers and keeps complete pieces.
    """
    present, sizes, lock = [0] * len(targets), [target.expected or 0 for target in targets], threading.Lock()

    def fetch_one(number: int) -> FetchedFile:
        def progress(done: int, size: int) -> None:
            with lock:
                present[number], sizes[number] = done, size
                options.progress(sum(present), sum(sizes))

        fetched = fetch(targets[number], dataclasses.replace(options, progress=progress))
        progress(fetched.size, fetched.size)
        return fetched

    order = sorted(range(len(targets)), key=lambda number: -(targets[number].expected or 0))
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="fetch") as pool:
        try:
            futures = {number: pool.submit(fetch_one, number) for number in order}
            waiting: set[Future[FetchedFile]] = set(futures.values())
            while waiting:
                ended, waiting = wait(waiting, _TICK, FIRST_COMPLETED)
                for future in ended:
                    if future.exception() is None:
                        on_fetched(future.result())
        except BaseException:
            options.stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    return _results([futures[number] for number in range(len(targets))])


def _results(futures: Sequence[Future[FetchedFile]]) -> list[FetchedFile]:
    """Return the results, or raise an error with the number of others: a wrong hash, a missing file, any."""
    errors = [error for future in futures if (error := future.exception()) is not None]
    if not errors:
        return [future.result() for future in futures]
    certain = [error for kind in (PromiseError, NotFoundError) for error in errors if isinstance(error, kind)]
    first = next(iter(certain), errors[0])
    if isinstance(first, EnvcheckError) and len(errors) > 1:
        message = f"{first.message} (and {counted(len(errors) - 1, 'more file')})"
        raise type(first)(message, fix=first.fix) from first
    raise first
