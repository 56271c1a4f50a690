"""Detect a stalled response: some servers send a byte now and then, which no read timeout ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

# A response must deliver at least BYTES in SECONDS of waiting.
SECONDS: Final = 25.0
BYTES: Final = 25 << 10


def reason() -> str:
    """Return why a stalled response was ended, as text for the user."""
    return f"it sent less than {BYTES >> 10} KiB in {SECONDS:g} s"


class StallDetector:
    """Time the waiting for chunks, and not their processing."""

    def __init__(self) -> None:
        self.stalled = False
        self._waited = 0.0
        self._came = 0

    def watch(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the chunks; after each one, `stalled` tells whether they come too slowly."""
        began = time.monotonic()
        for chunk in chunks:
            self.record(time.monotonic() - began, len(chunk))
            yield chunk
            began = time.monotonic()

    def record(self, seconds: float, size: int) -> bool:
        """Record the seconds of waiting for a chunk and its bytes; return whether chunks come too slowly."""
        self._waited += seconds
        self._came += size
        if self._waited > SECONDS:
            self.stalled = self._came < BYTES
            self._waited, self._came = 0.0, 0
        return self.stalled
