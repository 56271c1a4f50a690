"""Python indexes: read a project's page (PEP 691 JSON, PEP 503 HTML, a flat page of links), and find a lock's files.

Pages, and the names on them, are not trusted: a name could cost time or memory.
"""

import codecs
import contextlib
import dataclasses
import functools
import itertools
import math
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import msgspec
import uv
from packaging.tags import Tag
from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

from envcheck.errors import NotFoundError, UnavailableError, refuse
from envcheck.mirrors.fetch.request import NoSourceError, try_sources
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.net.network_errors import NetworkError, fail, is_missing
from envcheck.mirrors.net.responses import HttpResponse
from envcheck.mirrors.net.waits import map_in_threads
from envcheck.mirrors.profiles.model import CLIENT_DEFAULT, Index, Profile, host_of, network_indexes

ACCEPT: Final = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.5, text/html;q=0.3"
_TAKEN: Final = ("text/html", "application/vnd.pypi.simple.v1")
# torch's own page on its largest index has 1 MB; a flat page of all its wheels several.
_LARGEST: Final = 64 << 20
_PETABYTE: Final = 10**15
# The largest known pages list some 15 000 files. Characters.
_MOST: Final = 50_000
_TOO_MANY: Final = f"its page lists more than {_MOST} files"
_LONGEST_TAG: Final = 1 << 16
_FED: Final = 1 << 16
_SHA256: Final = re.compile(r"sha256=([0-9a-fA-F]{64})")
# Bytes of a file's name (linux/limits.h).
NAME_MAX: Final = 255
# A wheel's name encodes a set of tags: `py2.py3-none-any` is two. A name of 250 bytes could encode 64 000.
_MOST_TAGS: Final = 200


@dataclasses.dataclass(frozen=True, slots=True)
class IndexFile:
    """One file that a page lists, with None for what it does not say. `yanked`: withdrawn by its project."""

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
        return listed_files(answer)


def listed_files(answer: HttpResponse, *, for_pip: bool = False) -> list[IndexFile]:
    """Return the files that an answered page lists; raise as `read_page` does, `for_pip` where pip and uv take none."""
    answer.demand_ok(f" to {urlsplit(answer.url).path}")
    kind = answer.headers.get("Content-Type", "")
    files = parse_page(answer.page(_LARGEST), kind, answer.url)
    # github.com/artifact-keeper/artifact-keeper/issues/2748: a proxy makes application/octet-stream of it
    if (for_pip or not files) and not kind.lower().startswith(_TAKEN):
        fail(f"it calls its page {kind[:60] or 'nothing'}, and pip and uv take none but {' and '.join(_TAKEN)}")
    return files


def parse_page(body: Iterable[bytes], kind: str, url: str) -> list[IndexFile]:
    """Return the files of a page at `url` with absolute URLs; `kind` is its content type. Raise NetworkError."""
    try:
        if "json" not in kind:
            return _parse_html(body, url)
        text = b"".join(body)
        if text.count(b'"filename"') > _MOST:
            fail(_TOO_MANY)
        return [_parse_entry(entry, url) for entry in msgspec.json.decode(text)["files"]]
    except (RecursionError, KeyError, TypeError, AttributeError, AssertionError, ValueError):
        # Python's parser of HTML raises two of them for a bad `<![` and for a character reference with many digits.
        fail(f"its page is not {'PEP 691 JSON' if 'json' in kind else 'valid HTML'}")


def _parse_html(chunks: Iterable[bytes], url: str) -> list[IndexFile]:
    """Return the links of a page, parsed while it arrives. Keeps neither its text nor more than _MOST links."""
    reader, decoder = _Links(url), codecs.getincrementaldecoder("utf-8")("replace")
    for chunk in chunks:
        for at in range(0, len(chunk), _FED):
            reader.feed(decoder.decode(chunk[at : at + _FED]))
            if len(reader.rawdata) > _LONGEST_TAG:
                fail(f"its page has a tag of more than {_LONGEST_TAG} characters")
    return reader.files


def _parse_entry(entry: Mapping[str, Any], url: str) -> IndexFile:
    size, digest = entry.get("size"), (entry.get("hashes") or {}).get("sha256")
    uploaded = entry.get("upload-time")
    return IndexFile(
        name=str(entry["filename"]),
        url=_as_pip_asks(urljoin(url, str(entry["url"]))),
        sha256=digest.lower() if isinstance(digest, str) else None,
        size=size if isinstance(size, int) and not isinstance(size, bool) and 0 <= size < _PETABYTE else None,
        uploaded=uploaded if isinstance(uploaded, str) else None,
        yanked=entry.get("yanked") not in (False, None),
    )


def _as_pip_asks(url: str) -> str:
    """Return the URL with the + of a version as %2B: object stores take a bare one for a blank (aptly#98)."""
    return re.sub(r"^[^?]+", lambda path: path[0].replace("+", "%2B"), url)


class _Links(HTMLParser):
    def __init__(self, url: str) -> None:
        super().__init__()
        self._base = url
        self.files: list[IndexFile] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        href = attributes.get("href")
        if href is None or tag not in {"a", "base"}:
            return
        with contextlib.suppress(ValueError):  # a link that is no URL
            target, fragment = urldefrag(urljoin(self._base, href))
            digest = _SHA256.search(fragment)
            name = unquote(urlsplit(target).path.rpartition("/")[2])
            if tag == "base":
                self._base = target
                return
            if len(self.files) >= _MOST:
                fail(_TOO_MANY)
            if name:
                yanked = "data-yanked" in attributes
                sha256 = digest[1].lower() if digest else None
                self.files.append(IndexFile(name, _as_pip_asks(target), sha256, yanked=yanked))


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


PYPI: Final = "pypi"
# Profiles that mean the clients' defaults. Any other profile without an index has none.
CLIENT_PROFILES: Final = ("none", "host")
_INDEX: Final = re.compile(r"^--index-url (\S+)$", re.MULTILINE)
_PYTORCH: Final = re.compile(r"(https?://\S+)/cpu/torch/")


def python_index() -> str:
    """Return the URL of uv's default index, as uv reports it."""
    match = _INDEX.search(_uv("--emit-index-url", "--quiet", requirements="").stdout)
    if match is None:
        refuse("uv does not report its default index", "name one in a mirror profile, under `pypi:`", UnavailableError)
    return match[1]


def pytorch_index() -> str:
    """Return the base URL of PyTorch's indexes (`/cpu`, ... follow it): uv, offline, reports what it would read."""
    match = _PYTORCH.search(_uv("--torch-backend", "cpu", "--offline", "--verbose", requirements="torch").stderr)
    if match is None:
        refuse("uv does not report PyTorch's index", "name one in a mirror profile, under `pytorch:`", UnavailableError)
    return match[1]


@functools.cache
def _uv(*options: str, requirements: str) -> subprocess.CompletedProcess[str]:
    command = [uv.find_uv_bin(), "pip", "compile", "--no-config", "--no-header", *options, "-"]
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "UV_NO_CACHE": "1"}
    return subprocess.run(
        command, input=requirements, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


def with_default_url(index: Index, family: str) -> Index:
    """Return the index, with the client's own URL where it stands for that."""
    if index.url != CLIENT_DEFAULT:
        return index
    return Index(url=f"{pytorch_index()}/{{variant}}" if family == "pytorch" else python_index(), kind=index.kind)


def network_sources(profile: Profile, part: str) -> list[Index]:
    """Return the indexes on the network that a profile has for a part of a lock: "pypi" or "pytorch/cu128"."""
    family, _, variant = part.partition("/")
    indexes = [index for index in profile.indexes(family) if index.local is None]
    if not indexes and profile.name in CLIENT_PROFILES:
        indexes = [Index(url=CLIENT_DEFAULT)]
    named = (with_default_url(index, family) for index in indexes)
    return [Index(url=index.url.replace("{variant}", variant), kind=index.kind) for index in named]


_AT_ONCE: Final = 8

Page: TypeAlias = list[IndexFile] | NetworkError


@dataclasses.dataclass(frozen=True)
class LockedPackage:
    """A package with the hashes of its files; `index` comes from its lock: "pypi" or "pytorch/cu128".

    `version` and `python` ("3.11") select the file by name if a page lists no hashes.
    """

    project: str
    sha256: tuple[str, ...]
    index: str = "pypi"
    version: str | None = None
    python: str | None = None

    @property
    def label(self) -> str:
        """Return project==version."""
        return f"{self.project}=={self.version}"


@dataclasses.dataclass(frozen=True)
class LocatedFile:
    """One file: its name, its sha256, its size in bytes if a page says it, and its URLs in the order of the indexes.

    `local` are files of this machine with its name; they may have another hash.
    """

    name: str
    sha256: str
    size: int | None
    urls: tuple[str, ...]
    local: tuple[Path, ...] = ()


def locate(
    packages: Sequence[LockedPackage], indexes: Mapping[str, Sequence[Index]], client: Client
) -> list[LocatedFile]:
    """Return all files of these packages. `indexes` maps "pypi" and "pytorch" to indexes in the order to try.

    Raises UnavailableError naming the first package that no index lists with a hash of its lock, and why.
    """
    urls = {package: _page_urls(package, indexes) for package in packages}
    pages = _read_pages([(package, url) for package in packages for url in urls[package]], client)
    return [
        file
        for package in packages
        for file in match_files(
            package,
            [pages[package, url] for url in urls[package]],
            local_files(package, indexes),
            [host_of(url) for url in urls[package]],
        )
    ]


def match_files(
    package: LockedPackage, pages: Iterable[Page], local: Sequence[Path] = (), hosts: Sequence[str] = ()
) -> list[LocatedFile]:
    """Return the files of a package that these pages list; a page may be the error of reading it.

    A file without a hash matches if another page lists its name with the hash; if no page lists hashes, if it is the
    only file that fits. `hosts` names the host of each page for the error. Raises UnavailableError if no page has it.
    """
    listed: list[IndexFile] = []
    reasons, unread = [], False
    for page, host in itertools.zip_longest(pages, hosts):
        prefix = f"{host}: " if host else ""
        if isinstance(page, NetworkError):
            reasons.append(f"{prefix}{page} ({page.fix})" if page.fix else f"{prefix}{page}")
            unread = unread or not is_missing(page)
            continue
        relevant = [file for file in page if file.sha256 is None or file.sha256 in package.sha256]
        matching = [file for file in relevant if _belongs_to(package, file.name)]
        listed += matching
        if not any(file.sha256 in package.sha256 for file in matching):
            unhashed = any(file.sha256 is None for file in matching)
            why = "its page has no hashes" if unhashed else "no file on its page has a hash of the lock"
            if not any(_belongs_to(package, file.name) for file in page):
                why = f"its page lists no file of {package.project}: open its URL in a browser, it may be another page"
            reasons.append(f"{prefix}{why}")
    names = {str(file.sha256): file.name for file in reversed(listed) if file.sha256 in package.sha256}
    unsure = {file.name for file in listed if file.sha256 is None} | {path.name for path in local}
    fitting = [name for name in unsure if not names and fits(package, name)]
    if len(fitting) == len(package.sha256) == 1:
        names = {package.sha256[0]: fitting[0]}
    if not names:
        message = f"{package.project}: {'; '.join(dict.fromkeys(reasons)) or 'no index is configured'}"
        error = UnavailableError if unread or not reasons else NotFoundError
        raise error(message, fix="choose a mirror that has it (--mirror), or lock the cell again")
    return [_located_file(digest, name, listed, local) for digest, name in names.items()]


def _located_file(digest: str, name: str, listed: Sequence[IndexFile], local: Sequence[Path]) -> LocatedFile:
    same = [file for file in listed if file.sha256 == digest or (file.sha256 is None and file.name == name)]
    size = next((file.size for file in same if file.size is not None), None)
    urls = tuple(dict.fromkeys(file.url for file in same))
    return LocatedFile(name, digest, size, urls, tuple(path for path in local if path.name == name))


def _belongs_to(package: LockedPackage, name: str) -> bool:
    return "/" not in name and name.isprintable() and _parse_name(name)[0] == canonicalize_name(package.project)


def fits(package: LockedPackage, name: str) -> bool:
    """Tell whether a file is of this project and version and runs on this Linux and the package's Python."""
    _, version, tags = _parse_name(name)
    if package.version is None or version != Version(package.version) or not _belongs_to(package, name):
        return False
    return not tags or any(_tag_runs(tag, package.python) for tag in tags)


def _tag_runs(tag: Tag, python: str | None) -> bool:
    """Tell whether a wheel with this tag runs on this machine's Linux and on that Python ("3.11", None for any)."""
    if tag.platform != "any" and not ("linux" in tag.platform and tag.platform.endswith(platform.machine())):
        return False
    if python is None:
        return True
    if tag.abi in {"abi3", "none"} and tag.interpreter.startswith(("cp3", "py3")):
        oldest = tag.interpreter[3:] or "0"
        return oldest.isdecimal() and int(oldest) <= int(python.partition(".")[2].rstrip("t"))
    return tag.abi == f"cp{python.replace('.', '')}"


def _parse_name(name: str) -> tuple[str, Version | None, frozenset[Tag]]:
    try:
        return parse_file_name(name)
    except ValueError:
        return "", None, frozenset()


def _page_urls(package: LockedPackage, indexes: Mapping[str, Sequence[Index]]) -> list[str]:
    family, _, variant = package.index.partition("/")
    remote = [index for index in indexes.get(family, ()) if index.local is None]
    return [page_url(with_default_url(index, family), package.project, variant) for index in remote]


def local_files(package: LockedPackage, indexes: Mapping[str, Sequence[Index]]) -> list[Path]:
    """Return the project's files in directories of this machine, or in subdirectories named after the project."""
    family, _, variant = package.index.partition("/")
    local_paths = [index.local for index in indexes.get(family, ()) if index.local is not None]
    folders = [Path(str(folder).replace("{variant}", variant)) for folder in local_paths]
    places = [place for folder in folders for place in (folder, folder / package.project) if place.is_dir()]
    files = [
        file
        for place in places
        for file in sorted(place.iterdir())
        if _belongs_to(package, file.name) and file.is_file()
    ]
    version = Version(package.version) if package.version else None
    return [file for file in files if version is None or _parse_name(file.name)[1] == version]


def _read_pages(requests: Sequence[tuple[LockedPackage, str]], client: Client) -> dict[tuple[LockedPackage, str], Page]:
    """Return the files or the error of each page. Waits for a busy host only if no other page lists the package."""

    def read(request: tuple[LockedPackage, str]) -> Page:
        try:
            return read_page(client, request[1])
        except NetworkError as error:
            return error

    def read_again(request: tuple[LockedPackage, str]) -> Page:
        try:
            return try_sources([request[1]], lambda url: read_page(client, url))[0]
        except NoSourceError as error:
            return error.reasons[request[1]]

    pages = dict(zip(requests, map_in_threads(read, requests, _AT_ONCE), strict=True))
    listed = {
        package
        for (package, _), page in pages.items()
        if isinstance(page, list) and any(file.sha256 is None or file.sha256 in package.sha256 for file in page)
    }
    busy = [
        one for one, page in pages.items() if isinstance(page, NetworkError) and page.retry and one[0] not in listed
    ]
    return pages | dict(zip(busy, map_in_threads(read_again, busy, _AT_ONCE), strict=True))


def read_project(
    client: Client, indexes: Sequence[Index], profile: Profile, family: str, variant: str, project: str
) -> list[IndexFile] | None:
    """Return the first page of a project that an index has, None if all answer that they have none."""
    remote = network_indexes(list(indexes), closed=profile.closed)
    if not remote:
        refuse(f"{profile.name} is closed and has no {family} index", "choose another --mirror", UnavailableError)
    failed: UnavailableError | None = None
    for index in remote:
        url = page_url(with_default_url(index, family), project, variant)
        try:
            return read_page(client, url)
        except NetworkError as error:
            failed = failed if is_missing(error) else unavailable(url, str(error))
    if failed is not None:
        raise failed
    return None


def unavailable(url: str, why: str) -> UnavailableError:
    """Return the error of an index that cannot be read."""
    return UnavailableError(f"cannot read the index {host_of(url)}: {why}", fix="choose another mirror (--mirror)")
