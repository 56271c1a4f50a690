"""Ctrl-C, SIGTERM and SIGHUP end a command alike: work that has begun is cleaned up, and the exit code says it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_stops: list[threading.Event] = []


class InterruptedBySignalError(KeyboardInterrupt):
    """A signal that ends the process, raised where Ctrl-C would be."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """Have the signals raise InterruptedBySignalError within the block; those that are ignored, as by nohup, stay so.

    The second signal of a kind ends the process at once.
    """
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    usual = (signal.SIG_DFL, signal.default_int_handler)
    taken = {number: handler for number, handler in before.items() if handler in usual}
    for number in taken:
        signal.signal(number, _raise)
    try:
        yield
    finally:
        for number, handler in taken.items():
            signal.signal(number, handler)


def _raise(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    for stop in _stops:
        # Not here: the interrupted step may hold the event's lock.
        threading.Thread(target=stop.set, daemon=True).start()
    raise InterruptedBySignalError(number)


@contextlib.contextmanager
def stopping(stop: threading.Event) -> Iterator[None]:
    """Set `stop` when a signal interrupts the block, before the block ends: its threads look at it and end."""
    _stops.append(stop)
    try:
        yield
    finally:
        _stops.remove(stop)


def status_of(how: BaseException | None) -> int:
    """Return the exit code of an interrupt: 128 and the signal's number."""
    return 128 + (how.number if isinstance(how, InterruptedBySignalError) else signal.SIGINT)
