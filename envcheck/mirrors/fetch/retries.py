"""Fetch what one response holds: try the sources in order, and retry those that are busy or broke off."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from envcheck.errors import NotFoundError, UnavailableError
from envcheck.mirrors.fetch.request import StoppedError
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.net.network_errors import NetworkError, SlowError, is_missing
from envcheck.mirrors.net.urls import host_of
from envcheck.mirrors.net.waits import NETWORK_WAITS

# Seconds that a source may ask to wait (Retry-After) in total before it delivers something.
LONGEST_WAIT: Final = 300.0
# A source that was silent so many times in a row is not asked again.
SLOW_ANSWERS: Final = 2
# Seconds before a busy source is tried again, if it does not say how long to wait.
WAITS: Final[tuple[float, ...]] = (1.0, 2.0, 5.0)

_T = TypeVar("_T")


class NoSourceError(Exception):
    """No source delivered; `reasons` has the error of each URL."""

    def __init__(self, reasons: Mapping[str, NetworkError]) -> None:
        super().__init__("; ".join(f"{host_of(url)}: {reason}" for url, reason in reasons.items()))
        self.reasons = reasons


def no_answer_error(message: str, fix: str, reasons: Sequence[NetworkError | None]) -> UnavailableError:
    """Return the error of sources that gave no file: NotFoundError if each of them says that it does not have it."""
    return (NotFoundError if reasons and all(map(is_missing, reasons)) else UnavailableError)(message, fix=fix)


def read_body(client: Client, url: str, limit: int) -> tuple[bytes, Mapping[str, str]]:
    """Return a body of at most `limit` bytes, and its headers. Raise NetworkError."""
    with client.get(url) as answer:
        answer.demand_ok()
        return answer.text(limit), answer.headers


def try_sources(
    urls: Sequence[str], attempt: Callable[[str], _T], stop: threading.Event | None = None
) -> tuple[_T, str]:
    """Return the result of the first URL that succeeds, and that URL. Retry busy URLs after the others.

    One that asks to wait for more than LONGEST_WAIT in all, or was silent SLOW_ANSWERS times, is not asked again.
    Raise NoSourceError when all are done for, StoppedError when `stop` is set.
    """
    stop, left, reasons, waited = stop or threading.Event(), list(urls), dict[str, NetworkError](), 0.0
    for tries, wait in enumerate((0.0, *WAITS), 1):
        pause = min((reasons[url].after or wait for url in left), default=0.0) if tries > 1 else 0.0
        waited += pause
        with contextlib.ExitStack() as noted:
            for url in left if pause else ():
                note = f"{reasons[url]}; next attempt after {pause:.0f} s"
                noted.enter_context(NETWORK_WAITS.on(host_of(url), "pause", note))
            if stop.wait(pause):
                raise StoppedError
        for url in left:
            result = _attempt_or_error(attempt, url)
            if not isinstance(result, NetworkError):
                return result, url
            reasons[url] = result
        left = [url for url in left if _may_retry(reasons[url], waited, tries)]
        if not left:
            break
    raise NoSourceError(reasons)


def _attempt_or_error(attempt: Callable[[str], _T], url: str) -> _T | NetworkError:
    try:
        return attempt(url)
    except NetworkError as error:
        return error


def _may_retry(error: NetworkError, waited: float, tries: int) -> bool:
    """Tell whether a URL that failed with this error may be tried again."""
    if not error.retry or waited + (error.after or 0.0) > LONGEST_WAIT:
        return False
    return not (isinstance(error, SlowError) and tries >= SLOW_ANSWERS)
