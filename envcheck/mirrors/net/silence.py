"""Which hosts have been silent of late, so that not every file and page of a command finds it out anew."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from envcheck.mirrors.net.urls import host_of

# So many rounds of waiting in a row, in which nothing came from a host, and it is not asked for a while. Seconds.
ROUNDS: Final = 2
WHILE: Final = 60.0


class Silence:
    """Counts, for each host, the rounds in which none of its requests was answered. Safe in threads.

    Requests that wait at the same time are one round: a host that is asked for sixteen things at once is silent once.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._silent: dict[str, tuple[int, float]] = {}  # host -> rounds, and the end of the last one
        self._reasons: dict[str, str] = {}

    def note(self, url: str, began: float, reason: str = "it stalled") -> None:
        """Note that a request to a host, made at `began`, has had no answer until now, and the failure as text."""
        with self._lock:
            self._reasons[host_of(url)] = reason
            rounds, last = self._silent.get(host_of(url), (0, began))
            self._silent[host_of(url)] = (rounds + 1, self._clock()) if began >= last else (rounds, last)

    def heard(self, url: str) -> None:
        """Note that a host gives what it is asked for."""
        with self._lock:
            self._silent.pop(host_of(url), None)

    def rounds(self, url: str) -> int:
        """Return in how many rounds the URL's host was silent since it gave something."""
        return self._silent.get(host_of(url), (0, 0.0))[0]

    def given_up(self, url: str) -> bool:
        """Tell whether the URL's host was silent so often, and so lately, that it is not worth asking."""
        rounds, last = self._silent.get(host_of(url), (0, 0.0))
        return rounds >= ROUNDS and self._clock() - last < WHILE

    def reason(self, url: str) -> str:
        """Return how the last request to the URL's host failed, as text for the user."""
        return f"{self._reasons.get(host_of(url), 'it stalled')}, again and again"

    def last(self, urls: Sequence[str]) -> tuple[str, ...]:
        """Return the URLs, those of silent hosts after the others."""
        return tuple(sorted(urls, key=lambda url: self.rounds(url) > 0))
