"""A Python index's page of one project: PEP 691 JSON, PEP 503 HTML, or a flat page of links."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any, Final
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import msgspec

from envcheck.mirrors.asking import LaterError
from envcheck.mirrors.fetch import answers
from envcheck.mirrors.http import Client, NetworkError
from envcheck.mirrors.profile import Index
from envcheck.mirrors.remedies import of_status

ACCEPT: Final = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.5, text/html;q=0.3"
# torch's own page on its largest index has 1 MB; a flat page of all its wheels several.
_LARGEST: Final = 64 << 20
_SHA256: Final = re.compile(r"sha256=([0-9a-f]{64})")


@dataclasses.dataclass(frozen=True)
class File:
    """One file a page lists. `sha256` and `size` (bytes) where the page says them."""

    name: str
    url: str
    sha256: str | None = None
    size: int | None = None


def page_url(index: Index, project: str, variant: str = "") -> str:
    """Return where an index lists a project's files; `{variant}` in its URL is put in."""
    url = index.url.replace("{variant}", variant).rstrip("/")
    return f"{url}/{project}/" if index.kind == "simple" else index.url.replace("{variant}", variant)


def read(client: Client, url: str) -> list[File]:
    """Return what a page lists. Raise NetworkError where there is none, LaterError where it may come in a moment."""
    with client.get(url, {"Accept": ACCEPT}) as answer:
        if answer.status != 200:  # noqa: PLR2004 (HTTP's OK)
            message = f"it answers {answer.status} to {urlsplit(url).path}"
            busy = answers.busy(answer.status, answer.headers, time.time())
            raise NetworkError(message, of_status(answer.status)) if busy is None else LaterError(message, busy.after)
        return parse(answer.text(_LARGEST), answer.headers.get("Content-Type", ""), answer.url)


def parse(body: bytes, kind: str, url: str) -> list[File]:
    """Return the files of a page found at `url`, links made absolute. Raise NetworkError for what is no such page."""
    if "json" in kind:
        return _json(body, url)
    reader = _Links(url)
    reader.feed(body.decode("utf-8", "replace"))
    return reader.files


def _json(body: bytes, url: str) -> list[File]:
    try:
        page = msgspec.json.decode(body)
        return [_entry(entry, url) for entry in page["files"]]
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError, ValueError) as error:
        message = "its page is no PEP 691 JSON"
        raise NetworkError(message) from error


def _entry(entry: Mapping[str, Any], url: str) -> File:
    size, digest = entry.get("size"), entry.get("hashes", {}).get("sha256")
    return File(
        name=str(entry["filename"]),
        url=urljoin(url, str(entry["url"])),
        sha256=digest if isinstance(digest, str) else None,
        size=size if isinstance(size, int) and not isinstance(size, bool) else None,
    )


class _Links(HTMLParser):
    def __init__(self, url: str) -> None:
        super().__init__()
        self._base = url
        self.files: list[File] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        href = named.get("href")
        if href is None:
            return
        with contextlib.suppress(ValueError):  # a link that is no URL
            self._link(tag, href)

    def _link(self, tag: str, href: str) -> None:
        if tag == "base":
            self._base = urljoin(self._base, href)
        elif tag == "a":
            target, fragment = urldefrag(urljoin(self._base, href))
            digest = _SHA256.search(fragment)
            name = unquote(urlsplit(target).path.rpartition("/")[2])
            if name:
                self.files.append(File(name, target, digest[1] if digest else None))
