"""Long pauses between requests, of which a person hears, and jobs in threads that a signal or a deadline ends."""

import collections
import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar, cast

# Seconds of a pause that a person hears about.
_LONG: Final = 5.0
_T = TypeVar("_T")
_R = TypeVar("_R")
_listeners: list[Callable[[str], None]] = []


@contextlib.contextmanager
def announced(say: Callable[[str], None]) -> Iterator[None]:
    """Have `say` hear of long pauses until the block ends."""
    _listeners.append(say)
    try:
        yield
    finally:
        _listeners.remove(say)


def tell_pause(host: str, reason: object, seconds: float) -> None:
    """Tell a person that a host is asked again after so many seconds, if they are many."""
    if seconds >= _LONG and _listeners:
        _listeners[-1](f"{host}: {reason}; next attempt in {seconds:.0f} s")


def map_in_threads(job: Callable[[_T], _R], items: Iterable[_T], threads: int) -> list[_R]:
    """Return `job` of each item, in order; the first error of a job is raised when the others have ended.

    A signal ends the waiting at once: an executor would first wait for its threads, and a page may take minutes.
    """
    return cast("list[_R]", map_within(job, items, threads, math.inf))


def map_within(job: Callable[[_T], _R], items: Iterable[_T], threads: int, seconds: float) -> list[_R | None]:
    """Return `job` of each item, in order; None for a job that did not end within so many seconds."""
    todo = collections.deque(enumerate(items))  # its methods are safe in threads
    results: list[_R | None] = [None] * len(todo)
    errors, end = list[BaseException](), time.monotonic() + seconds

    def work() -> None:
        try:
            while not errors and time.monotonic() < end:
                try:
                    number, item = todo.popleft()
                except IndexError:
                    return
                results[number] = job(item)
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
