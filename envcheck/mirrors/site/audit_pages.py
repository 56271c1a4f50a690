"""What the index pages in a site's cache say of files: their hashes, by URL. No site need be up, and none is asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from envcheck.errors import UnavailableError
from envcheck.mirrors import simple
from envcheck.mirrors.http import Client, NetworkError
from envcheck.mirrors.locate import Need, locate
from envcheck.mirrors.profile import Index
from envcheck.mirrors.site.audit import Finding, not_read
from envcheck.mirrors.site.audit_disk import Unread, unread
from envcheck.mirrors.site.cachefile import Answer, answers
from envcheck.mirrors.site.model import Site
from envcheck.mirrors.site.render import places


@dataclasses.dataclass(frozen=True)
class Says:
    """A hash that a page gives a file; `page` is its cache file, None where the site itself was asked."""

    sha256: str
    page: Path | None = None


@dataclasses.dataclass
class Pages:
    """What is known of files: unquoted URL of the upstream -> what pages say; `left` are pages that nobody can read."""

    says: dict[str, set[Says]]
    left: list[Finding]


def read(site: Site, wanted: Collection[str]) -> Pages:
    """Return what the pages in a site's cache say of wanted files, the upstream's URLs, unquoted."""
    root = Path(site.root, "cache/index")
    pages = Pages({}, [])
    for answer in answers(root):
        if isinstance(answer, Unread):
            pages.left.append(not_read("packages", answer, root))
        elif answer.status == 200:  # noqa: PLR2004 (HTTP's OK)
            _add(pages, answer, site, wanted)
    return pages


def _add(pages: Pages, answer: Answer, site: Site, wanted: Collection[str]) -> None:
    part, _, path = answer.key.partition("|")
    index = next((one for one in site.indexes if one.part == part), None)
    if index is None:  # a page of somebody else's tree, as apt's lists: its clients have signatures for it
        pages.left.append(Finding(answer.key, "unknown", "no lock holds it, and it is no page of an index"))
        return
    try:
        body = _body(answer)
        page = f"{index.url}{path.rpartition('|')[0]}"
        found = {**dict(_files(body, answer.kind, page)), **dict(_metadata(body, answer.kind, page))}
    except FileNotFoundError:
        return
    except OSError as error:
        pages.left.append(not_read("packages", unread(answer.path, error), answer.path.parents[2]))
        return
    except NetworkError as error:
        pages.left.append(Finding(answer.key, "unknown", str(error)))
        return
    for url, sha256 in found.items():
        if unquote(url) in wanted:
            pages.says.setdefault(unquote(url), set()).add(Says(sha256, answer.path))


def _body(answer: Answer) -> bytes:
    with answer.path.open("rb") as file:
        file.seek(answer.body)
        return file.read()


def _files(body: bytes, kind: str, page: str) -> Iterator[tuple[str, str]]:
    yield from ((file.url, file.sha256) for file in simple.parse(body, kind, page) if file.sha256)


def _metadata(body: bytes, kind: str, page: str) -> Iterator[tuple[str, str]]:
    """Yield the URLs of the metadata files (PEP 714) that a JSON page tells a hash of."""
    if "json" not in kind:
        return
    urls = [file.url for file in simple.parse(body, kind, page)]
    for url, entry in zip(urls, msgspec.json.decode(body)["files"], strict=True):
        said = next((entry[key] for key in ("core-metadata", "dist-info-metadata") if key in entry), None)
        sha256 = said.get("sha256") if isinstance(said, dict) else None
        if isinstance(sha256, str):
            yield f"{url}.metadata", sha256


def asked(site: Site, needs: Iterable[Need], client: Client) -> tuple[dict[str, set[Says]], dict[Need, str]]:
    """Return what the running site's own pages say of needs, by the upstream's URLs, and why they say nothing."""
    base = site.at(site.port)
    indexes = {"pypi": [Index(url=f"{base}/pypi/simple")], "pytorch": [Index(url=f"{base}/pytorch/whl/{{variant}}")]}
    says: dict[str, set[Says]] = {}
    reasons: dict[Need, str] = {}
    for need in needs:
        try:
            found = locate([need], indexes, client)
        except UnavailableError as error:
            reasons[need] = error.message
            continue
        for file in found:
            for url in file.urls:
                says.setdefault(_upstream(places(site), url), set()).add(Says(file.sha256))
    return says, reasons


def _upstream(at: Iterable[Mapping[str, Any]], url: str) -> str:
    """Return the upstream's URL, unquoted, of what the site has at a URL of its own."""
    path = unquote(urlsplit(url).path)
    place = next((one for one in reversed(list(at)) if path.startswith(f"{one['at']}/")), None)
    return "" if place is None else f"{place['to']}{path.removeprefix(place['at'])}"
