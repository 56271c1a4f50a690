"""Read a Python index's page of one project: PEP 691 JSON, PEP 503 HTML, or a flat page of links.

Pages, and the names on them, are not trusted: a name could cost time or memory.
"""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from html.parser import HTMLParser
from typing import Any, Final
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import msgspec
from packaging.tags import Tag
from packaging.utils import parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

from envcheck.mirrors.net.client import Client
from envcheck.mirrors.net.network_errors import NetworkError
from envcheck.mirrors.profiles.model import Index

ACCEPT: Final = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.5, text/html;q=0.3"
# torch's own page on its largest index has 1 MB; a flat page of all its wheels several.
_LARGEST: Final = 64 << 20
_PETABYTE: Final = 10**15
# The largest known pages list some 15 000 files. Characters.
_MOST: Final = 50_000
_LONGEST_TAG: Final = 1 << 16
_FED: Final = 1 << 16
_SHA256: Final = re.compile(r"sha256=([0-9a-f]{64})")
# Bytes of a file's name (linux/limits.h).
NAME_MAX: Final = 255
# A wheel's name encodes a set of tags: `py2.py3-none-any` is two. A name of 250 bytes could encode 64 000.
_MOST_TAGS: Final = 200


@dataclasses.dataclass(frozen=True, slots=True)
class IndexFile:
    """One file that a page lists. `sha256`, `size` (bytes) and `uploaded` are None if the page does not have them.

    `yanked` files were withdrawn by their project.
    """

    name: str
    url: str
    sha256: str | None = None
    size: int | None = None
    uploaded: str | None = None
    yanked: bool = False


def page_url(index: Index, project: str, variant: str = "") -> str:
    """Return the URL of the page that lists a project's files; replaces `{variant}` in the index's URL."""
    url = index.url.replace("{variant}", variant).rstrip("/")
    return f"{url}/{project}/" if index.kind == "simple" else index.url.replace("{variant}", variant)


def read_page(client: Client, url: str) -> list[IndexFile]:
    """Return the files that a page lists. Raise StatusError if there is no page, NetworkError if it cannot be read."""
    with client.get(url, {"Accept": ACCEPT}) as answer:
        answer.demand_ok(f" to {urlsplit(url).path}")
        kind = answer.headers.get("Content-Type", "")
        if "json" in kind:
            return _parse_json(answer.text(_LARGEST), answer.url)
        return _parse_html(answer.page(_LARGEST), answer.url)


def parse_page(body: bytes, kind: str, url: str) -> list[IndexFile]:
    """Return the files of a page at `url` with absolute URLs; `kind` is its content type.

    Raises NetworkError if it is not valid.
    """
    return _parse_json(body, url) if "json" in kind else _parse_html([body], url)


def _parse_html(chunks: Iterable[bytes], url: str) -> list[IndexFile]:
    """Return the links of a page, parsed while it arrives. Keeps neither its text nor more than _MOST links."""
    reader, decoder = _Links(url), codecs.getincrementaldecoder("utf-8")("replace")
    for chunk in chunks:
        for at in range(0, len(chunk), _FED):
            _feed(reader, decoder.decode(chunk[at : at + _FED]))
            if len(reader.rawdata) > _LONGEST_TAG:
                message = f"its page has a tag of more than {_LONGEST_TAG} characters"
                raise NetworkError(message)
    return reader.files


def _feed(reader: HTMLParser, text: str) -> None:
    """Feed Python's parser. It raises these errors for a bad `<![` and for a character reference with many digits."""
    try:
        reader.feed(text)
    except (AssertionError, ValueError) as error:
        message = "its page is not valid HTML"
        raise NetworkError(message) from error


def _too_many_error() -> NetworkError:
    return NetworkError(f"its page lists more than {_MOST} files")


def _parse_json(body: bytes, url: str) -> list[IndexFile]:
    if body.count(b'"filename"') > _MOST:
        raise _too_many_error()
    try:
        page = msgspec.json.decode(body)
        return [_parse_entry(entry, url) for entry in page["files"]]
    except (msgspec.DecodeError, RecursionError, KeyError, TypeError, AttributeError, ValueError) as error:
        message = "its page is not PEP 691 JSON"
        raise NetworkError(message) from error


def _parse_entry(entry: Mapping[str, Any], url: str) -> IndexFile:
    size, digest = entry.get("size"), entry.get("hashes", {}).get("sha256")
    uploaded = entry.get("upload-time")
    return IndexFile(
        name=str(entry["filename"]),
        url=urljoin(url, str(entry["url"])),
        sha256=digest if isinstance(digest, str) else None,
        size=size if isinstance(size, int) and not isinstance(size, bool) and 0 <= size < _PETABYTE else None,
        uploaded=uploaded if isinstance(uploaded, str) else None,
        yanked=entry.get("yanked", False) is not False,
    )


class _Links(HTMLParser):
    def __init__(self, url: str) -> None:
        super().__init__()
        self._base = url
        self.files: list[IndexFile] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        href = attributes.get("href")
        if href is None:
            return
        with contextlib.suppress(ValueError):  # a link that is no URL
            self._link(tag, href, yanked="data-yanked" in attributes)

    def _link(self, tag: str, href: str, *, yanked: bool) -> None:
        if tag == "base":
            self._base = urljoin(self._base, href)
        elif tag == "a":
            target, fragment = urldefrag(urljoin(self._base, href))
            digest = _SHA256.search(fragment)
            name = unquote(urlsplit(target).path.rpartition("/")[2])
            if len(self.files) >= _MOST:
                raise _too_many_error()
            if name:
                self.files.append(IndexFile(name, target, digest[1] if digest else None, yanked=yanked))


def parse_file_name(name: str) -> tuple[str, Version, frozenset[Tag]]:
    """Return project, version and, for a wheel, the tags. Raises ValueError if it is not the name of either."""
    if len(name.encode("utf-8", "replace")) > NAME_MAX:
        message = f"a name of more than {NAME_MAX} bytes"
        raise ValueError(message)
    if not name.endswith(".whl"):
        project, version = parse_sdist_filename(name)
        return project, version, frozenset()
    if math.prod(part.count(".") + 1 for part in name.removesuffix(".whl").split("-")[-3:]) > _MOST_TAGS:
        message = f"a name that stands for more than {_MOST_TAGS} tags"
        raise ValueError(message)
    project, version, _, tags = parse_wheel_filename(name)
    return project, version, tags
