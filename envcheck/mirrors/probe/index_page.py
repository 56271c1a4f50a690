"""Read an index page for a probe: the files that it lists, and its age."""

from __future__ import annotations

import email.utils
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from envcheck.mirrors.index import simple_api
from envcheck.mirrors.net.network_errors import NetworkError
from envcheck.mirrors.net.responses import HttpResponse
from envcheck.mirrors.probe.budget import Budget
from envcheck.mirrors.probe.measurements import IndexPage

CHUNK_BYTES: Final = 1 << 16
# Python refuses to read thousands of digits.
_SERIAL: Final = re.compile(r"[0-9]{1,18}")


def read_index_page(response: HttpResponse, budget: Budget) -> tuple[IndexPage, list[simple_api.IndexFile]]:
    """Return a page and the files on it. Raise NetworkError for an error status or an exhausted budget."""
    if response.status != HTTPStatus.OK:
        message = f"it answers {response.status} to {urlsplit(response.url).path}"
        raise NetworkError(message)
    body = bytearray()
    for chunk in response.decoded_chunks(CHUNK_BYTES):
        budget.spend(len(chunk))
        body += chunk
    kind = response.headers.get("Content-Type", "")
    page = IndexPage(
        host=response.hosts[-1],
        bytes=len(body),
        json="json" in kind,
        modified=_date(response.headers.get("Last-Modified")),
        serial=_serial(response.headers),
    )
    return page, simple_api.parse_page(bytes(body), kind, response.url)


def _serial(headers: Mapping[str, str]) -> int | None:
    value = headers.get("X-PyPI-Last-Serial", "")
    return int(value) if _SERIAL.fullmatch(value) else None


def _date(value: str | None) -> float | None:
    """Return an HTTP date in seconds since the epoch, or None."""
    try:
        return email.utils.parsedate_to_datetime(value).timestamp() if value else None
    except (ValueError, OverflowError):
        return None
