"""What the response to a range request means; pure."""

from __future__ import annotations

import email.utils
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from envcheck.mirrors.fetch.plan.pieces import Failure, RangeTask
from envcheck.mirrors.net.advice import status_advice

# Fifteen digits are a petabyte. No file is larger, and Python refuses to parse thousands of digits.
_RANGE: Final = re.compile(r"bytes ([0-9]{1,15})-([0-9]{1,15})/([0-9]{1,15})")
_LENGTH: Final = re.compile(r"[0-9]{1,15}")
_DIGITS: Final = re.compile(r"[0-9]+")
_SPELLED: Final = 1e18
_BUSY: Final = {408, 425, 429, 500, 502, 503, 504}
# A source that answers one of these does not have the file.
MISSING: Final = frozenset({404, 410})
_CROWDED: Final = {429, 503}


def etag_of(headers: Mapping[str, str]) -> str | None:
    """Return the strong ETag, or None. A weak one does not identify the bytes (RFC 9110, section 8.8.1)."""
    tag = headers.get("ETag")
    return None if tag is None or tag.startswith("W/") else tag


def content_range_size(headers: Mapping[str, str]) -> int | None:
    """Return the size of the whole file from a Content-Range header, or None."""
    match = _RANGE.fullmatch(headers.get("Content-Range", ""))
    return int(match[3]) if match else None


def file_size(status: int, headers: Mapping[str, str]) -> int | None:
    """Return the size of the file from the response to a request for its first byte, or None."""
    if status == HTTPStatus.PARTIAL_CONTENT:
        return content_range_size(headers)
    if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        return 0 if headers.get("Content-Range") == "bytes */0" else None
    length = headers.get("Content-Length", "")
    return int(length) if status == HTTPStatus.OK and _LENGTH.fullmatch(length) else None


def range_headers(task: RangeTask) -> dict[str, str]:
    """Return the request headers for a piece; If-Range holds the ETag of the other pieces."""
    headers = {"Range": f"bytes={task.span.start}-{task.span.stop - 1}"}
    return headers if task.etag is None else {**headers, "If-Range": task.etag}


def range_failure(task: RangeTask, status: int, headers: Mapping[str, str], size: int, now: float) -> Failure | None:
    """Return None if the response is the requested piece, else the failure. `now` is the Unix time in seconds."""
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
        return Failure("its file is shorter than expected", drop=True)
    return Failure(f"it answers {status}", drop=True, fix=status_advice(status), missing=status in MISSING)


def busy_failure(status: int, headers: Mapping[str, str], now: float) -> Failure | None:
    """Return the failure of a busy source that may succeed later, or None for another status."""
    if status not in _BUSY:
        return None
    after = retry_after(headers, now)
    return Failure(f"it answers {status}{wait_phrase(after)}", after=after, crowded=status in _CROWDED)


def wait_phrase(after: float | None) -> str:
    """Return the end of a sentence about a source that asks to wait this many seconds, or ""."""
    if after is None or after < 1:
        return ""
    return f" and asks to wait {after:.0f} s" if after <= _SPELLED else " and asks to wait more than 10^18 s"


def _partial_content_failure(task: RangeTask, headers: Mapping[str, str], size: int) -> Failure | None:
    match = _RANGE.fullmatch(headers.get("Content-Range", ""))
    if match is None:
        return Failure("it sends a part without a valid Content-Range", drop=True)
    first, last, total = map(int, match.groups())
    if total != size:
        return Failure(f"its file has {total} bytes, not {size}", drop=True)
    if (first, last) != (task.span.start, task.span.stop - 1):
        return Failure("it sends another part than requested", drop=True)
    if task.etag is not None and etag_of(headers) not in {None, task.etag}:
        return Failure("the file changed while it was fetched", changed=True)
    return None


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the wait in seconds from Retry-After, which is a number or a date, or None."""
    value = headers.get("Retry-After", "").strip()
    if _DIGITS.fullmatch(value):
        return float(value)  # any number of digits, unlike int(); beyond the largest float it is infinite
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - now) if value else None
    except (ValueError, OverflowError):
        return None
