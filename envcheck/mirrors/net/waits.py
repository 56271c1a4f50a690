"""What this process waits for over the network, so that a person hears about every long wait."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

# Seconds after which a wait is reported, and between two looks.
AFTER: Final = 5.0
_TICK: Final = 0.5


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
