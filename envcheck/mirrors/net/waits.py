"""What this process waits for over the network, so that a person hears about every long wait."""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

# Seconds after which a wait is reported, and between two looks.
AFTER: Final = 5.0
_TICK: Final = 0.5
_T = TypeVar("_T")
_R = TypeVar("_R")


class Waits:
    """The waits under way. `say` hears one line of each host and kind of wait that lasts AFTER seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: dict[object, tuple[str, str, str, float]] = {}
        self._reported: set[tuple[str, str]] = set()
        self._say: Callable[[str], None] | None = None
        self._end: threading.Event | None = None

    @contextlib.contextmanager
    def on(self, host: str, kind: str, reason: str) -> Iterator[None]:
        """Note that a host is waited for until the block ends."""
        token = object()
        with self._lock:
            self._under_way[token] = (host, kind, reason, time.monotonic())
            if self._say is not None and self._end is None:
                self._end = threading.Event()
                threading.Thread(target=self._watch, args=(self._say, self._end), daemon=True, name="waits").start()
        try:
            yield
        finally:
            with self._lock:
                del self._under_way[token]

    @contextlib.contextmanager
    def announced(self, say: Callable[[str], None]) -> Iterator[None]:
        """Have `say` hear of waits that last, until the block ends. One block at a time."""
        self._say, self._reported = say, set()
        try:
            yield
        finally:
            if self._end is not None:
                self._end.set()
            self._say, self._end = None, None

    def _watch(self, say: Callable[[str], None], end: threading.Event) -> None:
        while not end.wait(_TICK):
            for line in self.due():
                say(line)

    def due(self) -> list[str]:
        """Return a line of each wait that has lasted and was not reported yet."""
        lines, now = [], time.monotonic()
        with self._lock:
            for host, kind, reason, since in self._under_way.values():
                if now - since >= AFTER and (host, kind) not in self._reported:
                    self._reported.add((host, kind))
                    lines.append(f"waiting for {host} since {now - since:.0f} s: {reason}")
        return lines


NETWORK_WAITS: Final = Waits()


def map_in_threads(job: Callable[[_T], _R], items: Iterable[_T], threads: int) -> list[_R]:
    """Return `job` of each item, in order; the first error of a job is raised when the others have ended.

    A signal ends the waiting at once: an executor would first wait for its threads, and a page may take minutes.
    """
    return [result for result in map_within(job, items, threads, math.inf) if not isinstance(result, _Late)]


class _Late:
    """What stands for the result of a job that did not end in time."""


LATE: Final = _Late()


def map_within(job: Callable[[_T], _R], items: Iterable[_T], threads: int, seconds: float) -> list[_R | _Late]:
    """Return `job` of each item, in order; LATE for a job that did not end within so many seconds."""
    todo: queue.SimpleQueue[tuple[int, _T]] = queue.SimpleQueue()
    for pair in enumerate(items):
        todo.put(pair)
    results: list[_R | _Late] = [LATE] * todo.qsize()
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
