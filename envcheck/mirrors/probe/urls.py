"""Measure the hosts of URLs that a person gave, and whether mirrors have the same file."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote, urldefrag, urlsplit

import msgspec
from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename
from packaging.version import InvalidVersion

from envcheck.errors import ConfigError
from envcheck.mirrors.index import simple_api
from envcheck.mirrors.probe.budget import LATE, Budget, at_once
from envcheck.mirrors.probe.effective_indexes import URL, sources
from envcheck.mirrors.probe.file_matches import PYPI, Asked, Candidate
from envcheck.mirrors.probe.measurements import Measured, Sight
from envcheck.mirrors.probe.probe import Look, Mirror, latency_of, rated_all, reach_files, read_page
from envcheck.mirrors.profiles.model import Index, Profile, has_userinfo, redacted, without_query

_SHA256: Final = re.compile(r"sha256=([0-9a-f]{64})")
_VARIANT: Final = re.compile(r"cpu|cu[0-9]+|xpu|rocm[0-9.]+")
_OF_A_MODEL: Final = re.compile(r"/(?:datasets/)?[^/]+/[^/]+/resolve/[^/]+/.+")


@dataclasses.dataclass(frozen=True)
class Need:
    """A file at URLs: its name, the hash behind a `#`, and what mirrors know it by, where they can.

    `project` and `part` are a wheel's, `path` is a model's file below any endpoint.
    """

    urls: tuple[str, ...]
    name: str
    sha256: str | None = None
    project: str | None = None
    part: str = PYPI
    path: str | None = None


def need_of(urls: Sequence[str]) -> Need:
    """Return what URLs name, the first one above all. Raise ConfigError for one that may not be asked."""
    for url in urls:
        _check(url)
    first, fragment = urldefrag(urls[0])
    path, digest = urlsplit(first).path, _SHA256.fullmatch(fragment)
    project, part = _package(_name(first))
    return Need(
        urls=tuple(urldefrag(url)[0] for url in urls),
        name=_name(first),
        sha256=digest[1] if digest else None,
        project=project,
        part=part,
        path=path if _OF_A_MODEL.fullmatch(path) else None,
    )


def _check(url: str) -> None:
    if has_userinfo(url) or not url.startswith(("https://", "http://")) or not urlsplit(url).hostname:
        message = f"{redacted(url)!r} is no URL that may be asked"
        raise ConfigError(message, fix="write https://HOST/PATH/FILE; a password belongs into a netrc file")
    if "#" in url and not _SHA256.fullmatch(url.partition("#")[2]):
        message = f"{redacted(url.partition('#')[0])!r} has something else than a hash behind its #"
        raise ConfigError(message, fix="write #sha256= and 64 hexadecimal digits there, or nothing")


def _package(name: str) -> tuple[str | None, str]:
    """Return the project that a file's name tells, and the part of a lock it would be in."""
    try:
        project, version = (parse_wheel_filename if name.endswith(".whl") else parse_sdist_filename)(name)[:2]
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return None, PYPI
    of_torch = version.local is not None and _VARIANT.fullmatch(version.local)
    return project, f"pytorch/{version.local}" if of_torch else PYPI


def mirrors_of(need: Need, trust: Mirror) -> list[Mirror]:
    """Return each URL's host as a mirror, and its path where hosts are not enough to tell them apart.

    They are reached as `trust` is: with its CA and its netrc file.
    """
    hosts = [urlsplit(url).netloc for url in need.urls]
    names = [
        host if hosts.count(host) == 1 else f"{host}{urlsplit(url).path}"
        for host, url in zip(hosts, need.urls, strict=True)
    ]
    return [
        Mirror(name, Profile(name=name, pypi=[Index(url=url)]), trust.client)
        for name, url in zip(names, need.urls, strict=True)
    ]


def others(need: Need, named: Sequence[Mirror]) -> list[Mirror]:
    """Return the mirrors that are named beside the URLs, each with the indexes or endpoints to ask for the file.

    One alone may be named for its trust. Raise ConfigError for several where nothing says what they call the file.
    """
    if need.project is None and need.path is None:
        if len(named) > 1:
            message = f"{need.name} is no wheel and no model's file: no mirror can be asked for it by name"
            raise ConfigError(message, fix="compare its URLs (--need, repeated), and name one PROFILE for CA and netrc")
        return []
    asked = [mirror for mirror in named if mirror.name != "none"]
    able = [dataclasses.replace(mirror, profile=_narrowed(need, mirror.profile)) for mirror in asked]
    return [mirror for mirror in able if sources(mirror.profile, URL)] if len(named) == 1 else able


def _narrowed(need: Need, profile: Profile) -> Profile:
    """Return a profile that names nothing but where the file could be."""
    if need.path is None and need.part == PYPI:
        return profile
    if need.path is not None:
        places = [Index(url=f"{endpoint.rstrip('/')}{need.path}") for endpoint in profile.hf.endpoints]
    else:
        places = sources(profile, need.part)
    return msgspec.structs.replace(profile, pypi=places)


def asked_of(need: Need) -> list[Asked]:
    """Return the file that is needed, as what a stored measurement is found by."""
    return [Asked(need.name, "", (need.sha256,) if need.sha256 else (), URL)]


def probe_urls(mirrors: Sequence[Mirror], need: Need, budget: Budget) -> list[Measured]:
    """Return what was seen of each URL, and of each mirror beside them."""
    looks = [Look(mirror, URL, 1) for mirror in mirrors]
    files = budget.share(0.7)
    at_once(lambda look: _look(look, need, files), looks, len(looks), files)
    return rated_all(looks, budget)


def _look(look: Look, need: Need, budget: Budget) -> None:
    urls = [index.url for index in sources(look.mirror.profile, URL)]
    if not urls:
        return
    if need.path is None and urls[0] not in need.urls:
        indexes = sources(look.mirror.profile, URL)
        urls = [simple_api.page_url(index, need.project or "") for index in indexes]
    look.latency, look.latency_why = latency_of(look.mirror.client, urls[0], budget)
    if need.path is not None or urls[0] in need.urls:
        sight = Sight(need=need.name, listed="url", sha256=need.sha256, name=need.name)
        places = [Candidate(msgspec.structs.replace(sight, url=without_query(url)), url) for url in urls]
    else:
        at_once(lambda url: read_page(look, url, budget), urls, len(urls), budget)
        places = _places(need, [look.read.get(url, LATE) for url in urls])
    reach_files(look, [places], budget)


def _places(need: Need, pages: Sequence[list[simple_api.IndexFile] | str]) -> list[Candidate]:
    """Return where pages have the file: by its name, and under the hash where one is known."""
    files = [file for page in pages if not isinstance(page, str) for file in page if file.name == need.name]
    right = [file for file in files if need.sha256 is None or file.sha256 in {None, need.sha256}]
    if right:
        return [Candidate(_sight(need, file), file.url) for file in right]
    if files:
        why = f"its page gives {need.name} the sha256 {str(files[0].sha256)[:12]}..., not the one that is meant"
        return [Candidate(Sight(need=need.name, listed="other", name=need.name, why=why), "")]
    unread = [page for page in pages if isinstance(page, str)]
    why = "; ".join(dict.fromkeys(unread)) or "its page does not list it"
    return [Candidate(Sight(need=need.name, listed="unread" if unread else "absent", name=need.name, why=why), "")]


def _sight(need: Need, file: simple_api.IndexFile) -> Sight:
    sure = need.sha256 is not None and file.sha256 == need.sha256
    return Sight(
        need=need.name,
        listed="hash" if sure else "url",
        sha256=need.sha256,
        name=file.name,
        size=file.size,
        url=without_query(file.url),
    )


def _name(url: str) -> str:
    return unquote(urlsplit(url).path.rpartition("/")[2]) or urlsplit(url).netloc
