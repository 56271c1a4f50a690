"""Ask for what one answer holds: the sources in order, and once more those that are busy or were cut off."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Final, TypeVar

from envcheck.mirrors.fetch import answers
from envcheck.mirrors.fetch.pieces import Span, Task
from envcheck.mirrors.fetch.wanted import StoppedError
from envcheck.mirrors.http import Client, NetworkError
from envcheck.mirrors.remedies import of_status

# Seconds before those that are busy are asked again, where they do not say how long; and the longest they may say.
WAITS: Final[tuple[float, ...]] = (1.0, 2.0, 5.0)
_LONGEST: Final = 120.0
_ANY: Final = Task(0, Span(0, 1), 0)

_T = TypeVar("_T")


class StatusError(NetworkError):
    """An answer that is none."""

    def __init__(self, status: int) -> None:
        super().__init__(f"it answers {status}", of_status(status))
        self.status = status


class LaterError(NetworkError):
    """A source that may have it in a moment; `after` are the seconds it asked for."""

    def __init__(self, reason: str, after: float | None = None) -> None:
        super().__init__(reason)
        self.after = after


class NobodyError(Exception):
    """No source gave it; `reasons` says why, by URL."""

    def __init__(self, reasons: Mapping[str, NetworkError]) -> None:
        super().__init__()
        self.reasons = reasons


def text(client: Client, url: str, limit: int) -> tuple[bytes, Mapping[str, str]]:
    """Return a body of at most `limit` bytes, and its headers. Raise NetworkError, LaterError where to ask again."""
    with client.get(url) as answer:
        if answer.status != HTTPStatus.OK:
            failure = answers.judge(_ANY, answer.status, answer.headers, 0, time.time())
            if failure is None or failure.drop:
                raise StatusError(answer.status)
            raise LaterError(failure.reason, failure.after)
        try:
            return answer.text(limit), answer.headers
        except NetworkError as error:
            raise LaterError(str(error)) from error


def in_turn(urls: Sequence[str], attempt: Callable[[str], _T], stop: threading.Event | None = None) -> tuple[_T, str]:
    """Return what the first URL gives that gives it, and that URL; who is busy is asked again after the others.

    `attempt` raises NetworkError for a URL that has it not. Raise NobodyError when all are done for, StoppedError when
    `stop` is set.
    """
    stop = stop or threading.Event()
    left, reasons = list(urls), dict[str, NetworkError]()
    for wait in (0.0, *WAITS):
        if stop.wait(_rest([reasons[url] for url in left], wait) if wait else 0.0):
            raise StoppedError
        for url in left:
            said = _tried(attempt, url)
            if not isinstance(said, NetworkError):
                return said, url
            reasons[url] = said
        left = [url for url in left if isinstance(reasons[url], LaterError)]
        if not left:
            break
    raise NobodyError(reasons)


def _tried(attempt: Callable[[str], _T], url: str) -> _T | NetworkError:
    try:
        return attempt(url)
    except NetworkError as error:
        return error


def _rest(busy: Sequence[NetworkError], wait: float) -> float:
    """Return the seconds until the first of them may be asked again."""
    asked = [error.after for error in busy if isinstance(error, LaterError)]
    return min(_LONGEST, *(wait if after is None else after for after in asked))
