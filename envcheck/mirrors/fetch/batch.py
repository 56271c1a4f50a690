"""Fetch several files at once, the largest first, within one limit of bandwidth and of requests to a host."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Final

from envcheck.counting import counted
from envcheck.errors import EnvcheckError, NotFoundError, PromiseError, UnavailableError
from envcheck.mirrors.fetch.disk.partial_file import check_disk_space, sync_folders
from envcheck.mirrors.fetch.request import FetchedFile, TransferOptions, WantedFile
from envcheck.mirrors.fetch.transfer import fetch, smallest_size

AT_ONCE: Final = 4
_TICK: Final = 0.2


class ProgressTotals:
    """The bytes present and in total of all files, for one progress display. An unknown size counts as 0."""

    def __init__(self, targets: Sequence[WantedFile]) -> None:
        self._there = [0] * len(targets)
        self._all = [target.expected or 0 for target in targets]
        self._lock = threading.Lock()

    def update(self, number: int, done: int, size: int) -> tuple[int, int]:
        """Record the progress of one file; return the progress of all files."""
        with self._lock:
            self._there[number], self._all[number] = done, size
            return sum(self._there), sum(self._all)


def fetch_all(
    targets: Sequence[WantedFile], options: TransferOptions, on_fetched: Callable[[FetchedFile], None]
) -> list[FetchedFile]:
    """Fetch every file and return the results in the order of `targets`. Call `on_fetched` for each finished file.

    Raise the error of a file after the other files have ended, and a lack of disk space before any request. An
    interrupt stops all transfers and keeps complete pieces. When this returns, all files are synced to the disk: small
    files are synced together at the end. After a power cut, the next fetch verifies their hashes again.
    """
    _check_disk_space(targets, options)
    totals = ProgressTotals(targets)

    def fetch_one(number: int) -> FetchedFile:
        def progress(done: int, size: int) -> None:
            options.progress(*totals.update(number, done, size))

        fetched = fetch(targets[number], dataclasses.replace(options, progress=progress), durable=False)
        progress(fetched.size, fetched.size)
        return fetched

    order = sorted(range(len(targets)), key=lambda number: -(targets[number].expected or 0))
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="fetch") as pool:
        try:
            futures = {pool.submit(fetch_one, number): number for number in order}
            _report_finished(set(futures), on_fetched)
        except BaseException:
            options.stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    fetched = _results({number: future for future, number in futures.items()})
    sync_folders({fetch_one.path.parent for fetch_one in fetched})
    return fetched


def _check_disk_space(targets: Sequence[WantedFile], options: TransferOptions) -> None:
    """Raise UnavailableError if the disk is too small for all files. Ask the sources before trusting a page's size."""
    try:
        check_disk_space([dataclasses.replace(target, size=target.expected) for target in targets])
    except UnavailableError:
        unsure = [target for target in targets if target.size is None and target.hint is not None]
        if not unsure:
            raise
        with ThreadPoolExecutor(AT_ONCE) as pool:
            sizes = dict(zip(unsure, pool.map(lambda target: smallest_size(target, options), unsure), strict=True))
        check_disk_space([dataclasses.replace(target, size=sizes.get(target, target.size)) for target in targets])


def _report_finished(waiting: set[Future[FetchedFile]], on_fetched: Callable[[FetchedFile], None]) -> None:
    while waiting:
        ended, waiting = wait(waiting, _TICK, FIRST_COMPLETED)
        for future in ended:
            if future.exception() is None:
                on_fetched(future.result())


def _results(futures: dict[int, Future[FetchedFile]]) -> list[FetchedFile]:
    """Return the results in order, or raise an error with the number of others: a wrong hash, a missing file, any."""
    errors = [error for number in sorted(futures) if (error := futures[number].exception()) is not None]
    if not errors:
        return [futures[number].result() for number in sorted(futures)]
    certain = [error for kind in (PromiseError, NotFoundError) for error in errors if isinstance(error, kind)]
    first = next(iter(certain), errors[0])
    if isinstance(first, EnvcheckError) and len(errors) > 1:
        message = f"{first.message} (and {counted(len(errors) - 1, 'more file')})"
        raise type(first)(message, fix=first.fix) from first
    raise first
