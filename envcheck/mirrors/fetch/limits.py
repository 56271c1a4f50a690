"""What all files of a fetch share: a bandwidth limit (a token bucket), requests a host gets at once, and patience."""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

# Seconds for which a source may ask to be left alone (Retry-After), in all, until it gives something.
LONGEST_WAIT: Final = 300.0
# So many answers in a row that hardly move (see `net.stall`), and their source is given up.
SLOW_ANSWERS: Final = 2
_MOST: Final = 1 << 17
_LEAST: Final = 1 << 12
_TICK: Final = 0.5


class BandwidthLimiter:
    """Lets `rate` bytes a second through, at most a second's worth at once; None lets everything through."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._lock = threading.Lock()
        self._free_at = time.monotonic()
        self._taken = 0

    @property
    def taken(self) -> int:
        """Return the bytes that all files together have taken."""
        return self._taken

    @property
    def chunk(self) -> int:
        """Return the bytes to take at once: few enough to be within a tenth of a second."""
        return _MOST if self._rate is None else min(_MOST, max(_LEAST, int(self._rate / 10)))

    def take(self, size: int, stop: threading.Event | None = None) -> None:
        """Wait until `size` bytes more are within the rate, or until `stop`."""
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
    """At most `most` requests under way to one host, whatever the file."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._busy: collections.Counter[str] = collections.Counter()
        self._freed = threading.Condition()

    @contextlib.contextmanager
    def one(self, host: str, over: Callable[[], bool]) -> Iterator[bool]:
        """Hold one of a host's slots, waiting for it; False where `over` came true before there was one."""
        with self._freed:
            while not over() and self._busy[host] >= self._most:
                self._freed.wait(_TICK)
            mine = self._busy[host] < self._most and not over()
            self._busy[host] += mine
        try:
            yield mine
        finally:
            with self._freed:
                self._busy[host] -= mine
                self._freed.notify()
