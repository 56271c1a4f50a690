"""Fetch what one response holds: try the sources in order, and retry those that are busy or broke off."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Final, TypeVar

from envcheck.errors import NotFoundError, UnavailableError
from envcheck.mirrors.fetch.limits import LONGEST_WAIT, SLOW_ANSWERS
from envcheck.mirrors.fetch.plan import range_responses
from envcheck.mirrors.fetch.plan.pieces import RangeTask, Span
from envcheck.mirrors.fetch.request import StoppedError
from envcheck.mirrors.net.advice import status_advice
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.net.network_errors import NetworkError, SlowError
from envcheck.mirrors.net.responses import HttpResponse
from envcheck.mirrors.net.urls import host_of
from envcheck.mirrors.net.waits import NETWORK_WAITS

# Seconds before a busy source is tried again, if it does not say how long to wait.
WAITS: Final[tuple[float, ...]] = (1.0, 2.0, 5.0)
_ANY: Final = RangeTask(0, Span(0, 1), 0)

_T = TypeVar("_T")


class StatusError(NetworkError):
    """A response with an HTTP status that gives no content."""

    def __init__(self, status: int) -> None:
        super().__init__(f"it answers {status}", status_advice(status))
        self.status = status
        self.missing = status in range_responses.MISSING


class RetryLaterError(NetworkError):
    """A source that may answer later. `after`: the seconds that it asked to wait. `slow`: its response stalled."""

    def __init__(self, reason: str, after: float | None = None, *, slow: bool = False) -> None:
        super().__init__(reason)
        self.after = after
        self.slow = slow


class NoSourceError(Exception):
    """No source delivered; `reasons` has the error of each URL."""

    def __init__(self, reasons: Mapping[str, NetworkError]) -> None:
        super().__init__()
        self.reasons = reasons

    @property
    def missing(self) -> list[bool]:
        """Return for each source whether it says that it does not have the file."""
        return [isinstance(reason, StatusError) and reason.missing for reason in self.reasons.values()]


def no_answer_error(message: str, fix: str, missing: Sequence[bool]) -> UnavailableError:
    """Return the error of sources that gave no file: NotFoundError if each of them says that it does not have it."""
    return (NotFoundError if missing and all(missing) else UnavailableError)(message, fix=fix)


def read_body(client: Client, url: str, limit: int) -> tuple[bytes, Mapping[str, str]]:
    """Return a body of at most `limit` bytes, and its headers. Raise NetworkError, or RetryLaterError to retry."""
    with open_response(client, url) as answer:
        try:
            return answer.text(limit), answer.headers
        except NetworkError as error:
            raise RetryLaterError(str(error), slow=isinstance(error, SlowError)) from error


@contextlib.contextmanager
def open_response(client: Client, url: str) -> Iterator[HttpResponse]:
    """Yield the response to a request for the whole file. Raise StatusError, or RetryLaterError to retry."""
    with client.get(url) as answer:
        if answer.status != HTTPStatus.OK:
            failure = range_responses.range_failure(_ANY, answer.status, answer.headers, 0, time.time())
            if failure is None or failure.drop:
                raise StatusError(answer.status)
            raise RetryLaterError(failure.reason, failure.after)
        yield answer


def try_sources(
    urls: Sequence[str], attempt: Callable[[str], _T], stop: threading.Event | None = None, *, announce: bool = True
) -> tuple[_T, str]:
    """Return the result of the first URL that succeeds, and that URL. Retry busy URLs after the others.

    One that asks to wait for more than LONGEST_WAIT in all, or was too slow SLOW_ANSWERS times, is not asked again.
    `attempt` raises NetworkError for a URL that has it not. Not `announce`: the caller says who is waited for. Raise
    NoSourceError when all are done for, StoppedError when `stop` is set.
    """
    stop = stop or threading.Event()
    left, reasons = list(urls), dict[str, NetworkError]()
    waited = 0.0
    for tries, wait in enumerate((0.0, *WAITS), 1):
        pause = _pause([reasons[url] for url in left], wait) if tries > 1 else 0.0
        waited += pause
        with _waiting_for({url: reasons[url] for url in left if url in reasons} if announce else {}, pause):
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


@contextlib.contextmanager
def _waiting_for(busy: Mapping[str, NetworkError], pause: float) -> Iterator[None]:
    """Note who is waited for, and for how long."""
    with contextlib.ExitStack() as stack:
        for url, reason in busy.items():
            host_set_time = isinstance(reason, RetryLaterError) and reason.after is not None
            note = str(reason) if host_set_time else f"{reason}; next attempt after {pause:.0f} s"
            stack.enter_context(NETWORK_WAITS.on(host_of(url), "pause", note))
        yield


def _attempt_or_error(attempt: Callable[[str], _T], url: str) -> _T | NetworkError:
    try:
        return attempt(url)
    except NetworkError as error:
        return error


def _may_retry(error: NetworkError, waited: float, tries: int) -> bool:
    """Tell whether a URL that failed with this error may be tried again."""
    if not isinstance(error, RetryLaterError) or waited + (error.after or 0.0) > LONGEST_WAIT:
        return False
    return not (error.slow and tries >= SLOW_ANSWERS)


def _pause(busy: Sequence[NetworkError], wait: float) -> float:
    """Return the seconds until the first of these URLs may be tried again."""
    waits = [error.after for error in busy if isinstance(error, RetryLaterError)]
    return min((wait if after is None else after for after in waits), default=wait)
