"""What this process waits for over the network, so that a person hears about every long wait."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

# Seconds after which a wait is reported, and between two looks.
AFTER: Final = 5.0
_TICK: Final = 0.5


class Wait(NamedTuple):
    """One wait: for which host, of which kind, what is known of it and since when, on the clock of its Waits."""

    host: str
    kind: str
    what: str
    since: float


class Waits:
    """The waits under way. `say` hears one line of each host and kind of wait that lasts AFTER seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._under_way: dict[object, Wait] = {}
        self._reported: set[tuple[str, str]] = set()
        self._say: Callable[[str], None] | None = None
        self._watcher: threading.Thread | None = None
        self._end = threading.Event()

    @contextlib.contextmanager
    def on(self, host: str, kind: str, reason: str) -> Iterator[None]:
        """Note that a host is waited for until the block ends."""
        token = object()
        with self._lock:
            self._under_way[token] = Wait(host, kind, reason, self._clock())
            if self._say is not None and self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, args=(self._say,), daemon=True, name="waits")
                self._watcher.start()
        try:
            yield
        finally:
            with self._lock:
                del self._under_way[token]

    @contextlib.contextmanager
    def announced(self, say: Callable[[str], None]) -> Iterator[None]:
        """Have `say` hear of waits that last, until the block ends. One block at a time."""
        self._say, self._end, self._reported = say, threading.Event(), set()
        try:
            yield
        finally:
            self._end.set()
            self._say, self._watcher = None, None

    def due(self) -> list[str]:
        """Return a line of each wait that has lasted and was not reported yet."""
        lines, now = [], self._clock()
        with self._lock:
            for wait in self._under_way.values():
                key = wait.host, wait.kind
                if now - wait.since >= AFTER and key not in self._reported:
                    self._reported.add(key)
                    lines.append(f"waiting for {wait.host} since {now - wait.since:.0f} s: {wait.what}")
        return lines

    def _watch(self, say: Callable[[str], None]) -> None:
        end = self._end
        while not end.wait(_TICK):
            for line in self.due():
                say(line)


NETWORK_WAITS: Final = Waits()
