"""The budget of bytes and seconds that parallel probes share."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from envcheck.mirrors.net.network_errors import NetworkError

OUT_OF_TIME: Final = "the probe's time ran out"

_T = TypeVar("_T")
_R = TypeVar("_R")


class Budget:
    """The bytes and seconds for all mirrors together."""

    def __init__(self, size: int, seconds: float) -> None:
        self._lock = threading.Lock()
        self._left = [size]
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> int:
        """Return the bytes that are left."""
        return max(0, self._left[0])

    @property
    def seconds(self) -> float:
        """Return the seconds that are left."""
        return max(0.0, self._end - time.monotonic())

    def share(self, of: float) -> Budget:
        """Return a budget with the same bytes that ends after this share of the remaining time."""
        part = Budget(0, self.seconds * of)
        part._lock, part._left = self._lock, self._left
        return part

    def spend(self, size: int) -> None:
        """Count received bytes. Raise NetworkError if the bytes or the seconds are used up."""
        with self._lock:
            self._left[0] -= size
        if self._left[0] < 0:
            message = "the probe's budget of bytes is used up"
            raise NetworkError(message)
        if self.seconds == 0:
            raise NetworkError(OUT_OF_TIME)


def run_parallel(job: Callable[[_T], _R], items: Iterable[_T], threads: int, budget: Budget) -> list[_R | None]:
    """Return the results of a job for each item, None for a job that did not end in time, e.g. on a slow server."""
    todo: queue.SimpleQueue[tuple[int, _T]] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, _R]] = queue.SimpleQueue()
    items = list(items)
    for pair in enumerate(items):
        todo.put(pair)

    def work() -> None:
        while budget.seconds:
            try:
                number, item = todo.get_nowait()
            except queue.Empty:
                return
            done.put((number, job(item)))

    workers = [threading.Thread(target=work, daemon=True) for _ in range(min(threads, len(items)))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(budget.seconds)
    results: list[_R | None] = [None] * len(items)
    while not done.empty():
        number, result = done.get_nowait()
        results[number] = result
    return results
