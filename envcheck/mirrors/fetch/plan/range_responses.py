"""What an answer to a ranged request means; pure."""

from __future__ import annotations

import email.utils
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from envcheck.mirrors.fetch.plan.pieces import Failure, RangeTask
from envcheck.mirrors.net.advice import status_advice

# Fifteen digits are a petabyte; more are nobody's file, and Python refuses to read thousands of them.
_RANGE: Final = re.compile(r"bytes ([0-9]{1,15})-([0-9]{1,15})/([0-9]{1,15})")
_LENGTH: Final = re.compile(r"[0-9]{1,15}")
_DIGITS: Final = re.compile(r"[0-9]+")
_SPELLED: Final = 1e18
_BUSY: Final = {408, 425, 429, 500, 502, 503, 504}
_CROWDED: Final = {429, 503}


def etag_of(headers: Mapping[str, str]) -> str | None:
    """Return the strong ETag, or None: a weak one says nothing of bytes (RFC 9110, section 8.8.1)."""
    tag = headers.get("ETag")
    return None if tag is None or tag.startswith("W/") else tag


def content_range_size(headers: Mapping[str, str]) -> int | None:
    """Return the size of the whole file that a Content-Range tells."""
    match = _RANGE.fullmatch(headers.get("Content-Range", ""))
    return int(match[3]) if match else None


def file_size(status: int, headers: Mapping[str, str]) -> int | None:
    """Return the size of the file, as the answer to a request for its first byte tells it."""
    if status == HTTPStatus.PARTIAL_CONTENT:
        return content_range_size(headers)
    if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        return 0 if headers.get("Content-Range") == "bytes */0" else None
    length = headers.get("Content-Length", "")
    return int(length) if status == HTTPStatus.OK and _LENGTH.fullmatch(length) else None


def range_headers(task: RangeTask) -> dict[str, str]:
    """Return the headers that ask for a piece of the file its other pieces came from."""
    asked = {"Range": f"bytes={task.span.start}-{task.span.stop - 1}"}
    return asked if task.etag is None else {**asked, "If-Range": task.etag}


def range_failure(task: RangeTask, status: int, headers: Mapping[str, str], size: int, now: float) -> Failure | None:
    """Return None for the piece that was asked for, else why this is not it. `now` is the time of day, in seconds."""
    if status == HTTPStatus.PARTIAL_CONTENT:
        return _partial_content_failure(task, headers, size)
    if status == HTTPStatus.OK:
        if task.etag is not None and etag_of(headers) != task.etag:
            return Failure("the file changed while it was fetched", changed=True)
        return Failure("it sends whole files only", whole=True)
    later = busy_failure(status, headers, now)
    if later is not None:
        return later
    if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        return Failure("its file is shorter than what was asked for", drop=True)
    return Failure(f"it answers {status}", drop=True, fix=status_advice(status))


def busy_failure(status: int, headers: Mapping[str, str], now: float) -> Failure | None:
    """Return why a source gives nothing now, if it may in a moment."""
    if status not in _BUSY:
        return None
    after = _retry_after(headers, now)
    return Failure(f"it answers {status}{wait_phrase(after)}", after=after, crowded=status in _CROWDED)


def wait_phrase(after: float | None) -> str:
    """Return the rest of a sentence on a source that asks to be left alone for so many seconds."""
    if after is None or after < 1:
        return ""
    return f" and asks to wait {after:.0f} s" if after <= _SPELLED else " and asks to wait more than 10^18 s"


def _partial_content_failure(task: RangeTask, headers: Mapping[str, str], size: int) -> Failure | None:
    match = _RANGE.fullmatch(headers.get("Content-Range", ""))
    if match is None:
        return Failure("it sends a part and does not say which", drop=True)
    first, last, total = map(int, match.groups())
    if total != size:
        return Failure(f"its file has {total} bytes, not {size}", drop=True)
    if (first, last) != (task.span.start, task.span.stop - 1):
        return Failure("it sends another part than the one asked for", drop=True)
    if task.etag is not None and etag_of(headers) not in {None, task.etag}:
        return Failure("the file changed while it was fetched", changed=True)
    return None


def _retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds that Retry-After asks for, as a number or as a date."""
    said = headers.get("Retry-After", "").strip()
    if _DIGITS.fullmatch(said):
        return float(said)  # any number of digits, unlike int(); beyond the largest float it is infinite
    try:
        return max(0.0, email.utils.parsedate_to_datetime(said).timestamp() - now) if said else None
    except (ValueError, OverflowError):
        return None
