"""Several files at once: the largest first, all within one limit of bandwidth and of requests to a host."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Final

from envcheck.errors import EnvcheckError, PromiseError, UnavailableError
from envcheck.mirrors.fetch.disk.partial_file import check_disk_space, sync_folders
from envcheck.mirrors.fetch.request import FetchedFile, TransferOptions, WantedFile
from envcheck.mirrors.fetch.transfer import fetch, smallest_size

AT_ONCE: Final = 4
_TICK: Final = 0.2


class ProgressTotals:
    """The bytes there and in all of every file, for one progress display; a size nobody told is 0 until it is known."""

    def __init__(self, wanted: Sequence[WantedFile]) -> None:
        self._there = [0] * len(wanted)
        self._all = [want.expected or 0 for want in wanted]
        self._lock = threading.Lock()

    def update(self, number: int, there: int, size: int) -> tuple[int, int]:
        """Note how far a file is; return how far all are."""
        with self._lock:
            self._there[number], self._all[number] = there, size
            return sum(self._there), sum(self._all)


def fetch_all(
    wanted: Sequence[WantedFile], means: TransferOptions, done: Callable[[FetchedFile], None]
) -> list[FetchedFile]:
    """Fetch every file, in the order of `wanted` in the answer; `done` hears of each as it is there.

    What one file fails with is raised when the others are there; that there is no room for all, before anything is
    asked for. An interrupt stops all, and keeps each piece that is whole. When this returns, all of it is on the disk:
    small files are synced together at the end. What a power cut leaves of them before has no hash yet to be believed,
    and the next fetch compares it.
    """
    _check_disk_space(wanted, means)
    totals = ProgressTotals(wanted)

    def one(number: int) -> FetchedFile:
        def progress(there: int, size: int) -> None:
            means.progress(*totals.update(number, there, size))

        found = fetch(wanted[number], dataclasses.replace(means, progress=progress), durable=False)
        progress(found.size, found.size)
        return found

    order = sorted(range(len(wanted)), key=lambda number: -(wanted[number].expected or 0))
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="fetch") as pool:
        try:
            futures = {pool.submit(one, number): number for number in order}
            _report_finished(set(futures), done)
        except BaseException:
            means.stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    found = _results({number: future for future, number in futures.items()})
    sync_folders({one.path.parent for one in found})
    return found


def _check_disk_space(wanted: Sequence[WantedFile], means: TransferOptions) -> None:
    """Raise UnavailableError where there is no room for all. A size that only a page claims is asked of the sources."""
    try:
        check_disk_space([dataclasses.replace(want, size=want.expected) for want in wanted])
    except UnavailableError:
        unsure = [want for want in wanted if want.size is None and want.hint is not None]
        if not unsure:
            raise
        with ThreadPoolExecutor(AT_ONCE) as pool:
            told = dict(zip(unsure, pool.map(lambda want: smallest_size(want, means), unsure), strict=True))
        check_disk_space([dataclasses.replace(want, size=told.get(want, want.size)) for want in wanted])


def _report_finished(waiting: set[Future[FetchedFile]], done: Callable[[FetchedFile], None]) -> None:
    while waiting:
        ended, waiting = wait(waiting, _TICK, FIRST_COMPLETED)
        for future in ended:
            if future.exception() is None:
                done(future.result())


def _results(futures: dict[int, Future[FetchedFile]]) -> list[FetchedFile]:
    """Return the results in order, or raise the first error, saying how many more there are; a wrong hash first."""
    errors = [error for number in sorted(futures) if (error := futures[number].exception()) is not None]
    if not errors:
        return [futures[number].result() for number in sorted(futures)]
    first = next((error for error in errors if isinstance(error, PromiseError)), errors[0])
    if isinstance(first, EnvcheckError) and len(errors) > 1:
        message = f"{first.message} (and {len(errors) - 1} more file(s))"
        raise type(first)(message, fix=first.fix) from first
    raise first
