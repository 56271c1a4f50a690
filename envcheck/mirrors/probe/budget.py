"""What several probes at once may cost in bytes and seconds."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from envcheck.mirrors.net.client import NetworkError

LATE: Final = "the probe's time was up"

_T = TypeVar("_T")
_R = TypeVar("_R")


class Budget:
    """What all mirrors together may cost. `left` bytes, `late` once the seconds are over."""

    def __init__(self, size: int, seconds: float) -> None:
        self._lock = threading.Lock()
        self._left = [size]
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> int:
        """Return the bytes that may still be moved."""
        return max(0, self._left[0])

    @property
    def seconds(self) -> float:
        """Return the seconds that are left."""
        return max(0.0, self._end - time.monotonic())

    def share(self, of: float) -> Budget:
        """Return a budget of the same bytes that ends after that share of what time is left."""
        part = Budget(0, self.seconds * of)
        part._lock, part._left = self._lock, self._left
        return part

    def spend(self, size: int) -> None:
        """Take note of bytes that were moved. Raise NetworkError when that was too many, or too late."""
        with self._lock:
            self._left[0] -= size
        if self._left[0] < 0:
            message = "the probe's bytes were used up"
            raise NetworkError(message)
        if self.seconds == 0:
            raise NetworkError(LATE)


def at_once(job: Callable[[_T], _R], items: Iterable[_T], threads: int, budget: Budget) -> list[_R | None]:
    """Run a job for each item; None for those that were not done in time. A server that drips for ever ends nothing."""
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
