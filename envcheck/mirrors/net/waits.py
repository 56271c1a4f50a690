"""What this process waits for over the network, so that a person hears about every long wait; and jobs in threads."""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar, cast

# Seconds after which a wait is reported.
AFTER: Final = 5.0
_T = TypeVar("_T")
_R = TypeVar("_R")


class Waits:
    """The waits under way. `say` hears one line of each host and kind of wait that lasts AFTER seconds."""

    def __init__(self) -> None:
        self._reported: set[tuple[str, str]] = set()
        self._say: Callable[[str], None] | None = None

    @contextlib.contextmanager
    def on(self, host: str, kind: str, reason: str) -> Iterator[None]:
        """Note that a host is waited for until the block ends."""
        timer = threading.Timer(AFTER, self._tell, (host, kind, reason))
        timer.daemon = True
        if self._say is not None and (host, kind) not in self._reported:
            timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _tell(self, host: str, kind: str, reason: str) -> None:
        if self._say is not None and (host, kind) not in self._reported:
            self._reported.add((host, kind))
            self._say(f"waiting for {host} since {AFTER:.0f} s: {reason}")

    @contextlib.contextmanager
    def announced(self, say: Callable[[str], None]) -> Iterator[None]:
        """Have `say` hear of waits that last, until the block ends. One block at a time."""
        self._say, self._reported = say, set()
        try:
            yield
        finally:
            self._say = None


NETWORK_WAITS: Final = Waits()


def map_in_threads(job: Callable[[_T], _R], items: Iterable[_T], threads: int) -> list[_R]:
    """Return `job` of each item, in order; the first error of a job is raised when the others have ended.

    A signal ends the waiting at once: an executor would first wait for its threads, and a page may take minutes.
    """
    return cast("list[_R]", map_within(job, items, threads, math.inf))


def map_within(job: Callable[[_T], _R], items: Iterable[_T], threads: int, seconds: float) -> list[_R | None]:
    """Return `job` of each item, in order; None for a job that did not end within so many seconds."""
    todo: queue.SimpleQueue[tuple[int, _T]] = queue.SimpleQueue()
    for pair in enumerate(items):
        todo.put(pair)
    results: list[_R | None] = [None] * todo.qsize()
    errors, end = list[BaseException](), time.monotonic() + seconds

    def work() -> None:
        try:
            while not errors and time.monotonic() < end:
                number, item = todo.get_nowait()
                results[number] = job(item)
        except queue.Empty:
            return
        except BaseException as error:  # noqa: BLE001 (raised where the results are awaited)
            errors.append(error)

    workers = [threading.Thread(target=work, daemon=True) for _ in range(min(threads, len(results)))]
    for worker in workers:
        worker.start()
    try:
        for worker in workers:
            worker.join(None if end == math.inf else max(0.0, end - time.monotonic()))
    except BaseException as error:
        errors.append(error)  # no thread begins another item
        raise
    if errors:
        raise errors[0]
    return list(results)
