"""Measure the hosts of URLs from the command line, and mirrors that have the same file."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec

from envcheck.errors import ConfigError
from envcheck.mirrors.index import simple_api
from envcheck.mirrors.index.file_names import parse_file_name
from envcheck.mirrors.net.urls import is_web_url, split_sha256
from envcheck.mirrors.probe.budget import OUT_OF_TIME, Budget, run_parallel
from envcheck.mirrors.probe.effective_indexes import URL, network_sources
from envcheck.mirrors.probe.file_matches import PYPI, FileCandidate, WantedPackage
from envcheck.mirrors.probe.measurements import FileStatus, Listing, MirrorMeasurement
from envcheck.mirrors.probe.probe import Mirror, ProbeState, measure_latency, measure_rates, read_page, request_files
from envcheck.mirrors.profiles.model import Index, Profile, has_userinfo, redacted, without_query

_VARIANT: Final = re.compile(r"cpu|cu[0-9]+|xpu|rocm[0-9.]+")
_MODEL_PATH: Final = re.compile(r"/(?:datasets/)?[^/]+/[^/]+/resolve/[^/]+/.+")


@dataclasses.dataclass(frozen=True)
class NeededFile:
    """A file at one or more URLs: its name, the hash after `#`, and how mirrors find it.

    A wheel has a `project` and a `part` of a lock; a file of a model has a `path` below any endpoint.
    """

    urls: tuple[str, ...]
    name: str
    sha256: str | None = None
    project: str | None = None
    part: str = PYPI
    path: str | None = None


def needed_file(urls: Sequence[str]) -> NeededFile:
    """Return the file at the URLs; the first URL gives its name, any of them its hash.

    Raise ConfigError for an unusable URL, and for URLs of different hashes.
    """
    for url in urls:
        _check(url)
    bare, hash_parts = zip(*map(split_sha256, urls), strict=True)
    first = bare[0]
    path = urlsplit(first).path
    hashes = sorted(set(hash_parts) - {None})
    if len(hashes) > 1:
        message = f"{_file_name(first)}: {len(hashes)} different hashes ({', '.join(h[:12] + '...' for h in hashes)})"
        raise ConfigError(message, fix="the URLs of one probe are places of one file; probe for each file on its own")
    project, part = _package(_file_name(first))
    return NeededFile(
        urls=bare,
        name=_file_name(first),
        sha256=next(iter(hashes), None),
        project=project,
        part=part,
        path=path if _MODEL_PATH.fullmatch(path) else None,
    )


def _check(url: str) -> None:
    if has_userinfo(url) or not is_web_url(url):
        message = f"{redacted(url)!r} is not a usable URL"
        raise ConfigError(message, fix="write https://HOST/PATH/FILE; put a password into a netrc file")


def _package(name: str) -> tuple[str | None, str]:
    """Return the project in a file's name, or None, and the part of a lock that it belongs to."""
    try:
        project, version, _ = parse_file_name(name)
    except ValueError:
        return None, PYPI
    of_torch = version.local is not None and _VARIANT.fullmatch(version.local)
    return project, f"pytorch/{version.local}" if of_torch else PYPI


def url_mirrors(file: NeededFile, trust: Mirror) -> list[Mirror]:
    """Return each URL as a mirror, named by its host, and by its path too if hosts repeat.

    The mirrors use the CA and the netrc file of `trust`.
    """
    hosts = [urlsplit(url).netloc for url in file.urls]
    names = [
        host if hosts.count(host) == 1 else f"{host}{urlsplit(url).path}"
        for host, url in zip(hosts, file.urls, strict=True)
    ]
    return [
        Mirror(name, Profile(name=name, pypi=[Index(url=url)]), trust.client)
        for name, url in zip(names, file.urls, strict=True)
    ]


def named_mirrors(file: NeededFile, named: Sequence[Mirror]) -> list[Mirror]:
    """Return the mirrors that the command line names besides the URLs, with the indexes or endpoints for the file.

    A single mirror may be there for its CA and netrc file only. Raise ConfigError for several mirrors if the file is
    neither a wheel nor a file of a model.
    """
    if file.project is None and file.path is None:
        if len(named) > 1:
            message = f"{file.name} is neither a wheel nor a file of a model: mirrors cannot find it by name"
            raise ConfigError(message, fix="compare its URLs (repeat --need), and pass at most one --mirror")
        return []
    mirrors = [mirror for mirror in named if mirror.name != "none"]
    narrowed = [dataclasses.replace(mirror, profile=_narrowed_profile(file, mirror.profile)) for mirror in mirrors]
    return [mirror for mirror in narrowed if network_sources(mirror.profile, URL)] if len(named) == 1 else narrowed


def _narrowed_profile(file: NeededFile, profile: Profile) -> Profile:
    """Return the profile with only the indexes or endpoints that may have the file."""
    if file.path is None and file.part == PYPI:
        return profile
    if file.path is not None:
        indexes = [Index(url=f"{endpoint.rstrip('/')}{file.path}") for endpoint in profile.hf.endpoints]
    else:
        indexes = network_sources(profile, file.part)
    return msgspec.structs.replace(profile, pypi=indexes)


def wanted_packages(file: NeededFile) -> list[WantedPackage]:
    """Return the needed file as packages, from which the key of a stored measurement is made."""
    return [WantedPackage(file.name, "", (file.sha256,) if file.sha256 else (), URL)]


def probe_urls(mirrors: Sequence[Mirror], file: NeededFile, budget: Budget) -> list[MirrorMeasurement]:
    """Return the measurements of each URL and each named mirror."""
    states = [ProbeState(mirror, URL, 1) for mirror in mirrors]
    files = budget.share(0.7)
    run_parallel(lambda state: _probe_one(state, file, files), states, len(states), files)
    return measure_rates(states, budget)


def _probe_one(state: ProbeState, file: NeededFile, budget: Budget) -> None:
    urls = [index.url for index in network_sources(state.mirror.profile, URL)]
    if not urls:
        return
    if file.path is None and urls[0] not in file.urls:
        indexes = network_sources(state.mirror.profile, URL)
        urls = [simple_api.page_url(index, file.project or "") for index in indexes]
    state.latency, state.latency_why = measure_latency(state.mirror.client, urls[0], budget)
    if file.path is not None or urls[0] in file.urls:
        status = FileStatus(need=file.name, listed="url", sha256=file.sha256, name=file.name)
        candidates = [FileCandidate(msgspec.structs.replace(status, url=without_query(url)), url) for url in urls]
    else:
        run_parallel(lambda url: read_page(state, url, budget), urls, len(urls), budget)
        candidates = _candidates(file, [state.page_results.get(url, OUT_OF_TIME) for url in urls])
    request_files(state, [candidates], budget)


def _candidates(needed: NeededFile, pages: Sequence[list[simple_api.IndexFile] | str]) -> list[FileCandidate]:
    """Return where pages list the file: by its name, and under its hash if that is known."""
    files = [file for page in pages if not isinstance(page, str) for file in page if file.name == needed.name]
    matching = [file for file in files if needed.sha256 is None or file.sha256 in {None, needed.sha256}]
    if matching:
        return [FileCandidate(_file_status(needed, file), file.url) for file in matching]
    if files:
        why = f"its page lists {needed.name} with sha256 {str(files[0].sha256)[:12]}..., not the requested one"
        return [FileCandidate(FileStatus(need=needed.name, listed="other", name=needed.name, why=why), "")]
    unread = [page for page in pages if isinstance(page, str)]
    why = "; ".join(dict.fromkeys(unread)) or "its page does not list the file"
    listing: Listing = "unread" if unread else "absent"
    return [FileCandidate(FileStatus(need=needed.name, listed=listing, name=needed.name, why=why), "")]


def _file_status(needed: NeededFile, file: simple_api.IndexFile) -> FileStatus:
    same_hash = needed.sha256 is not None and file.sha256 == needed.sha256
    return FileStatus(
        need=needed.name,
        listed="hash" if same_hash else "url",
        sha256=needed.sha256,
        name=file.name,
        size=file.size,
        url=without_query(file.url),
    )


def _file_name(url: str) -> str:
    return unquote(urlsplit(url).path.rpartition("/")[2]) or urlsplit(url).netloc
