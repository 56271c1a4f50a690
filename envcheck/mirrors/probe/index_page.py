"""An index's page as a probe reads it: the files it lists, and what it says of its age."""

from __future__ import annotations

import email.utils
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from envcheck.mirrors.index import simple_api
from envcheck.mirrors.net.client import HttpResponse, NetworkError
from envcheck.mirrors.probe.budget import Budget
from envcheck.mirrors.probe.measurements import Page

CHUNK: Final = 1 << 16


def page_of(answer: HttpResponse, budget: Budget) -> tuple[Page, list[simple_api.IndexFile]]:
    """Return a page and the files on it. Raise NetworkError for no page, and when the budget is spent."""
    if answer.status != HTTPStatus.OK:
        message = f"it answers {answer.status} to {urlsplit(answer.url).path}"
        raise NetworkError(message)
    body = bytearray()
    for chunk in answer.arriving(CHUNK):
        budget.spend(len(chunk))
        body += chunk
    kind = answer.headers.get("Content-Type", "")
    page = Page(
        host=answer.hosts[-1],
        bytes=len(body),
        json="json" in kind,
        modified=_date(answer.headers.get("Last-Modified")),
        serial=_serial(answer.headers),
    )
    return page, simple_api.parse_page(bytes(body), kind, answer.url)


def _serial(headers: Mapping[str, str]) -> int | None:
    said = headers.get("X-PyPI-Last-Serial", "")
    return int(said) if said.isdecimal() else None


def _date(said: str | None) -> float | None:
    """Return an HTTP date as the time of day in seconds."""
    try:
        return email.utils.parsedate_to_datetime(said).timestamp() if said else None
    except (ValueError, OverflowError):
        return None
