"""Limits that all files of a fetch share: bandwidth (a token bucket), requests to a host at once, and waiting."""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

# Seconds that a source may ask to wait (Retry-After) in total before it delivers something.
LONGEST_WAIT: Final = 300.0
# Drop a source after this many stalled responses in a row (see `net.stall`).
SLOW_ANSWERS: Final = 2
_MOST: Final = 1 << 17
_LEAST: Final = 1 << 12
_TICK: Final = 0.5


class BandwidthLimiter:
    """Limit the transfer to `rate` bytes a second, with bursts of one second; None means no limit."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._lock = threading.Lock()
        self._free_at = time.monotonic()
        self._taken = 0

    @property
    def taken(self) -> int:
        """Return the bytes that all files have received together."""
        return self._taken

    @property
    def chunk(self) -> int:
        """Return the bytes to read at once: at most a tenth of a second's worth."""
        return _MOST if self._rate is None else min(_MOST, max(_LEAST, int(self._rate / 10)))

    def take(self, size: int, stop: threading.Event | None = None) -> None:
        """Wait until `size` more bytes are within the rate, or until `stop` is set."""
        with self._lock:
            self._taken += size
            if self._rate is None:
                return
            now = time.monotonic()
            self._free_at = max(self._free_at, now - 1.0) + size / self._rate
            wait = self._free_at - now
        if wait > 0:
            (stop or threading.Event()).wait(wait)


class HostSlots:
    """Allow at most `most` requests to one host at a time, over all files."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._busy: collections.Counter[str] = collections.Counter()
        self._freed = threading.Condition()

    @contextlib.contextmanager
    def acquire(self, host: str, over: Callable[[], bool]) -> Iterator[bool]:
        """Wait for one of a host's slots and hold it; yield False if `over` became true first."""
        with self._freed:
            while not over() and self._busy[host] >= self._most:
                self._freed.wait(_TICK)
            acquired = self._busy[host] < self._most and not over()
            self._busy[host] += acquired
        try:
            yield acquired
        finally:
            with self._freed:
                self._busy[host] -= acquired
                self._freed.notify()
