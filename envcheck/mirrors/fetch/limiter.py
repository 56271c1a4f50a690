"""A bandwidth limit shared by every connection of a fetch: a token bucket."""

from __future__ import annotations

import threading
import time


class Limiter:
    """Lets `rate` bytes a second through, at most a second's worth at once; None lets everything through."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._lock = threading.Lock()
        self._free_at = time.monotonic()

    def take(self, size: int) -> None:
        """Wait until `size` bytes more are within the rate."""
        if self._rate is None:
            return
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now - 1.0) + size / self._rate
            wait = self._free_at - now
        if wait > 0:
            time.sleep(wait)
