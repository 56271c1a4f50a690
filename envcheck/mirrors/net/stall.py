"""Whether an answer moves at all: some servers send a byte now and then, which no timeout of a single read ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

# In so many seconds of waiting at least so many bytes.
SECONDS: Final = 25.0
BYTES: Final = 25 << 10


def reason() -> str:
    """Return why an answer that hardly moves is given up, for a person."""
    return f"it sent less than {BYTES >> 10} KiB in {SECONDS:g} s"


class StallDetector:
    """Times the waiting for chunks, without what is done with them in between."""

    def __init__(self) -> None:
        self.drips = False
        self._waited = 0.0
        self._came = 0

    def timed(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the chunks; `drips` tells, with each, whether it came too slowly to go on."""
        asked = time.monotonic()
        for chunk in chunks:
            self.waited(time.monotonic() - asked, len(chunk))
            yield chunk
            asked = time.monotonic()

    def waited(self, seconds: float, size: int) -> bool:
        """Note how long a chunk was waited for, and its bytes; return whether they come too slowly to go on."""
        self._waited += seconds
        self._came += size
        if self._waited > SECONDS:
            self.drips = self._came < BYTES
            self._waited, self._came = 0.0, 0
        return self.drips
