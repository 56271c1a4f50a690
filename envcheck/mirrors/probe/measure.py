"""Measure mirrors for the files that are needed, in parallel, within a budget of bytes and seconds.

Pages and first bytes are requested in parallel; rates are measured one mirror at a time, as they share a network link.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

import msgspec

from envcheck.errors import UnavailableError
from envcheck.mirrors import index as simple_api
from envcheck.mirrors.hub import revision as hub_revision
from envcheck.mirrors.hub.api import default_endpoint
from envcheck.mirrors.index import (
    CLIENT_PROFILES,
    PYPI,
    LocatedFile,
    LockedPackage,
    Page,
    match_files,
    network_sources,
)
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.net.network_errors import NetworkError, UntrustedError
from envcheck.mirrors.net.responses import HttpResponse, file_size
from envcheck.mirrors.net.waits import map_within
from envcheck.mirrors.probe.ranking import (
    FileResponse,
    FileStatus,
    Listing,
    MirrorMeasurement,
    Rate,
    agreed_sizes,
    all_pass,
    criteria_of,
)
from envcheck.mirrors.profiles.model import CLIENT_DEFAULT, Profile, without_query

HUB: Final = "hf"
RANGE: Final = 8 << 20
RANGE_SECONDS: Final = 5.0
OUT_OF_TIME: Final = "the probe's time ran out"
_CHUNK: Final = 1 << 16
_THREADS: Final = 6


class Budget:
    """The bytes and seconds for all mirrors together."""

    def __init__(self, size: int, seconds: float) -> None:
        self._lock = threading.Lock()
        self._left = [size]
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> int:
        """Return the bytes that are left."""
        return max(0, self._left[0])

    @property
    def seconds(self) -> float:
        """Return the seconds that are left."""
        return max(0.0, self._end - time.monotonic())

    def share(self, of: float) -> Budget:
        """Return a budget with the same bytes that ends after this share of the remaining time."""
        part = Budget(0, self.seconds * of)
        part._lock, part._left = self._lock, self._left
        return part

    def spend(self, size: int) -> None:
        """Count received bytes. Raise NetworkError if the bytes or the seconds are used up."""
        with self._lock:
            self._left[0] -= size
        if self._left[0] < 0:
            message = "the probe's budget of bytes is used up"
            raise NetworkError(message)
        if self.seconds == 0:
            raise NetworkError(OUT_OF_TIME)


@dataclasses.dataclass(frozen=True)
class Mirror:
    """A profile to probe, and a client with its CA and credentials."""

    name: str
    profile: Profile
    client: Client


@dataclasses.dataclass
class _Probe:
    """The probe of one mirror while it runs. Each candidate is the status of a file and the URLs that may have it."""

    mirror: Mirror
    part: str
    needs: int
    urls: list[str]
    pages: dict[str, Page] = dataclasses.field(default_factory=dict)
    candidates: list[tuple[FileStatus, tuple[str, ...]]] = dataclasses.field(default_factory=list)
    files: list[tuple[FileStatus, str]] = dataclasses.field(default_factory=list)
    untrusted: str | None = None
    latency: float | None = None
    commit: str | None = None

    def get(self, url: str, headers: Mapping[str, str]) -> HttpResponse:
        """Send a request; note how long the first one took, and a host that is not trusted."""
        began = time.monotonic()
        try:
            answer = self.mirror.client.get(url, headers)
        except UntrustedError as error:
            self.untrusted = f"{urlsplit(url).netloc}: {error}"
            raise
        self.latency = time.monotonic() - began if self.latency is None else self.latency
        return answer

    def measured(self) -> MirrorMeasurement:
        """Return the measurement so far, in the form that is stored."""
        profile = self.mirror.profile
        return MirrorMeasurement(
            mirror=self.mirror.name,
            part=self.part,
            at=time.time(),
            own=own_hosts(profile, self.urls),
            closed=profile.closed,
            origin=is_origin(profile, self.part),
            needs=self.needs,
            missing=None if self.urls else missing_reason(self.part),
            untrusted=self.untrusted,
            plain=any(url.startswith("http://") for url in self.urls),
            latency=self.latency,
            pages=sum(not isinstance(page, NetworkError) for page in self.pages.values()),
            files=[status for status, _ in self.files],
            commit=self.commit,
        )


def own_hosts(profile: Profile, urls: Iterable[str]) -> list[str]:
    """Return the mirror's own hosts: all that its profile names, for any part, and those of these URLs."""
    named = [index.url for index in [*profile.pypi, *profile.pytorch]]
    return sorted({urlsplit(url).netloc for url in [*urls, *named, *profile.hf.endpoints] if "://" in url} - {""})


def is_origin(profile: Profile, part: str) -> bool:
    """Tell whether a part comes from the client's default only."""
    if part == HUB:
        return profile.name in CLIENT_PROFILES and not profile.hf.endpoints
    indexes = [index for index in (profile.pypi if part == PYPI else profile.pytorch) if index.local is None]
    return all(index.url == CLIENT_DEFAULT for index in indexes) and (bool(indexes) or profile.name in CLIENT_PROFILES)


def endpoints(profile: Profile) -> list[str]:
    """Return the hub endpoints of a profile, or the default of huggingface_hub if the profile means that."""
    own = default_endpoint() if profile.name in CLIENT_PROFILES and not profile.hf.endpoints else None
    return [*profile.hf.endpoints, *([own] if own else [])]


def missing_reason(part: str) -> str:
    """Return why a profile without an own index is not a mirror for a part."""
    if part == HUB:
        return "the profile names no Hugging Face endpoint"
    kind = "Python" if part == PYPI else "PyTorch"
    return f"the profile names no {kind} index: packages would come from the client's own default"


def probe_packages(
    mirrors: Sequence[Mirror], packages: Sequence[LockedPackage], budget: Budget, *, verify: bool = False
) -> list[MirrorMeasurement]:
    """Return a measurement of every mirror; `packages` are all packages of one part of a lock."""
    part = packages[0].index
    probes = [_package_probe(mirror, part, packages) for mirror in mirrors]
    # A mirror whose page never ends must not use up the time for the files of the others.
    pages, files = budget.share(0.4), budget.share(0.8)
    reads = [(probe, url) for probe in probes for url in probe.urls]
    map_within(lambda pair: _read_page(*pair, pages), reads, _THREADS * len(probes), pages.seconds)
    for probe in probes:
        probe.candidates = [pair for package in packages for pair in _candidates(probe, package)]
    return _measured(probes, budget, files, verify=verify)


def _package_probe(mirror: Mirror, part: str, packages: Sequence[LockedPackage]) -> _Probe:
    sources = network_sources(mirror.profile, part)
    urls = dict.fromkeys(simple_api.page_url(index, package.project) for package in packages for index in sources)
    return _Probe(mirror, part, len(packages), list(urls))


def _read_page(probe: _Probe, url: str, budget: Budget) -> None:
    try:
        with probe.get(url, {"Accept": simple_api.ACCEPT}) as answer:
            answer.demand_ok(f" to {urlsplit(url).path}")
            body = bytearray()
            for chunk in answer.chunks(_CHUNK, decode=True):
                budget.spend(len(chunk))
                body += chunk
            kind = answer.headers.get("Content-Type", "")
            probe.pages[url] = simple_api.parse_page(bytes(body), kind, answer.url)
    except NetworkError as error:
        probe.pages[url] = error


def _candidates(probe: _Probe, package: LockedPackage) -> list[tuple[FileStatus, tuple[str, ...]]]:
    """Return the files of a package that the mirror's pages list: by their hash or, without any, by their name."""
    urls = [simple_api.page_url(index, package.project) for index in network_sources(probe.mirror.profile, probe.part)]
    pages = [probe.pages.get(url, NetworkError(OUT_OF_TIME)) for url in urls]
    try:
        located = match_files(package, pages)
    except UnavailableError as error:
        return [(FileStatus(need=package.label, listed="absent", why=error.message.partition(": ")[2]), ())]
    hashed = {file.sha256 for page in pages if isinstance(page, list) for file in page}
    return [(_status(package, file, by_name=file.sha256 not in hashed), file.urls) for file in located]


def _status(package: LockedPackage, file: LocatedFile, *, by_name: bool) -> FileStatus:
    listing: Listing = "name" if by_name else "hash"
    url = without_query(file.urls[0])
    return FileStatus(need=package.label, listed=listing, sha256=file.sha256, size=file.size, url=url)


def probe_hub(
    mirrors: Sequence[Mirror], revision: hub_revision.Revision, budget: Budget, *, verify: bool = False
) -> list[MirrorMeasurement]:
    """Return the measurements of every mirror's endpoints: every file of one commit."""
    files = budget.share(0.7)
    probes = [_Probe(mirror, HUB, len(revision.files), endpoints(mirror.profile)) for mirror in mirrors]
    ref = hub_revision.Reference(revision.kind, revision.repo, revision.revision)
    for probe in probes:
        probe.commit = revision.revision
        for file in revision.files if probe.urls else ():
            urls = tuple(hub_revision.file_url(endpoint, ref, file.path) for endpoint in probe.urls)
            status = FileStatus(need=file.path, listed="hash", sha256=file.sha256, size=file.size, url=urls[0])
            probe.candidates.append((status, urls))
    return _measured(probes, budget, files, verify=verify)


def _measured(probes: Sequence[_Probe], budget: Budget, files: Budget, *, verify: bool) -> list[MirrorMeasurement]:
    map_within(lambda probe: _request_files(probe, files), probes, len(probes), files.seconds)
    measurements = {id(probe): probe.measured() for probe in probes}
    sizes = agreed_sizes(measurements.values())
    # The nearest first, as the budget may end.
    for probe in sorted(probes, key=lambda probe: math.inf if probe.latency is None else probe.latency):
        if all_pass(criteria_of(measurements[id(probe)], sizes)) and verify:
            probe.files = [(_hashed(probe, status, url, budget), url) for status, url in probe.files]
            measurements[id(probe)] = probe.measured()
        measurements[id(probe)] = _with_rate(probe, measurements[id(probe)], sizes, budget)
    return [measurements[id(probe)] for probe in probes]


def _request_files(probe: _Probe, budget: Budget) -> None:
    done = map_within(lambda pair: _request_file(probe, *pair), probe.candidates, _THREADS, budget.seconds)
    late = [(msgspec.structs.replace(status, why=OUT_OF_TIME), "") for status, _ in probe.candidates]
    probe.files = [one if isinstance(one, tuple) else missed for one, missed in zip(done, late, strict=True)]


def _request_file(probe: _Probe, status: FileStatus, urls: Sequence[str]) -> tuple[FileStatus, str]:
    """Request a file's first byte from each URL until one has it; return the status and that URL."""
    failed: FileStatus | None = None
    for url in urls:
        try:
            with probe.get(url, {"Range": "bytes=0-0"}) as answer:
                next(answer.chunks(1), b"")  # so that the connection can be reused
                reached = _file_response(answer)
        except NetworkError as error:
            failed = failed or msgspec.structs.replace(status, why=str(error))
            continue
        if reached.available:
            return msgspec.structs.replace(status, reached=reached), url
        why = f"{reached.hosts[-1]} answers {reached.status}"
        failed = failed or msgspec.structs.replace(status, reached=reached, why=why)
    return failed or status, ""


def _file_response(response: HttpResponse) -> FileResponse:
    by_name = {name.lower(): value for headers in reversed(response.passed) for name, value in headers.items()}
    size = file_size(response.status, response.headers)
    return FileResponse(
        status=response.status,
        hosts=list(response.hosts),
        ranged=response.status == HTTPStatus.PARTIAL_CONTENT and size is not None,
        total=size,
        commit=by_name.get("x-repo-commit"),
        linked=by_name.get("x-linked-etag", "").strip('"') or None,
    )


def _hashed(probe: _Probe, file: FileStatus, url: str, budget: Budget) -> FileStatus:
    if file.sha256 is None or file.hashed is not None or not url:
        return file
    size, digest = file.served_size or 0, hashlib.sha256()
    if size > budget.left:
        why = f"the file has {size} bytes, more than are left of the probe's budget; raise --max-bytes"
        return msgspec.structs.replace(file, hash_why=why)
    try:
        with probe.get(url, {}) as answer:
            answer.demand_ok()
            for chunk in answer.chunks(_CHUNK):
                budget.spend(len(chunk))
                digest.update(chunk)
    except NetworkError as error:
        return msgspec.structs.replace(file, hash_why=f"the download ended early: {error}")
    return msgspec.structs.replace(file, hashed=digest.hexdigest())


def _with_rate(
    probe: _Probe, measurement: MirrorMeasurement, sizes: Mapping[str, int], budget: Budget
) -> MirrorMeasurement:
    """Return the measurement with the rate, for a mirror that passes all criteria so far; a 404 has no speed."""
    served = [(status, url) for status, url in probe.files if url]
    why = None
    if not all_pass(criteria_of(measurement, sizes)):
        why = "a criterion failed before"
    else:
        file, url = max(served, key=lambda pair: pair[0].served_size or 0)
        total = file.served_size or 0
        # Half of a small file: a range that starts at 0 proves nothing.
        size = min(RANGE, total // 2, budget.left)
        if not total or size < min(_CHUNK, total // 2) or not budget.seconds:
            why = "the probe's budget of bytes or seconds is used up"
    if why is not None:
        return msgspec.structs.replace(measurement, rate_why=f"not measured: {why}")
    try:
        return msgspec.structs.replace(measurement, rate=_rate(probe.mirror.client, url, total, size, budget))
    except NetworkError as error:
        return msgspec.structs.replace(measurement, range_fault=str(error))


def _rate(client: Client, url: str, total: int, size: int, budget: Budget) -> Rate:
    start = (total - size) // 2
    began, received, why = time.monotonic(), 0, None
    with client.get(url, {"Range": f"bytes={start}-{start + size - 1}"}) as answer:
        answer.demand_range(start, start + size, total)
        try:
            for chunk in answer.chunks(_CHUNK):
                received += len(chunk)
                budget.spend(len(chunk))
                if time.monotonic() - began > RANGE_SECONDS:
                    break
        except NetworkError as error:
            why = str(error)
        return Rate(bytes=received, seconds=time.monotonic() - began, host=answer.hosts[-1], why=why)
