"""Measure mirrors for the files that a lock needs, in parallel, within a budget of bytes and seconds.

Pages and first bytes are requested in parallel; rates are measured one mirror at a time, as they share a network link.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

import msgspec

from envcheck.mirrors.fetch.plan import range_responses
from envcheck.mirrors.fetch.plan.pieces import RangeTask, Span
from envcheck.mirrors.index import simple_api
from envcheck.mirrors.net.client import Client
from envcheck.mirrors.net.network_errors import NetworkError, UntrustedError
from envcheck.mirrors.net.responses import HttpResponse
from envcheck.mirrors.probe.budget import OUT_OF_TIME, Budget, run_parallel
from envcheck.mirrors.probe.criteria import PeerFacts, all_pass, criteria_of, needs_hashing, peer_facts
from envcheck.mirrors.probe.directories import matching_files
from envcheck.mirrors.probe.effective_indexes import is_origin, missing_index_reason, network_sources, own_hosts
from envcheck.mirrors.probe.file_matches import FileCandidate, ListedFile, WantedPackage, candidates, files_by_hash
from envcheck.mirrors.probe.index_page import CHUNK_BYTES, read_index_page
from envcheck.mirrors.probe.measurements import (
    Branch,
    FileResponse,
    FileStatus,
    IndexPage,
    Latency,
    MirrorMeasurement,
    Rate,
)
from envcheck.mirrors.profiles.model import Index, Profile

RANGE: Final = 8 << 20
RANGE_SECONDS: Final = 5.0
_HANDSHAKES: Final = 3
_THREADS: Final = 6
_SUCCESS: Final = {HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT}


@dataclasses.dataclass(frozen=True)
class Mirror:
    """A profile to probe, a client with its CA and credentials, and its region, if known."""

    name: str
    profile: Profile
    client: Client
    region: str | None = None


@dataclasses.dataclass
class ProbeState:
    """The state of one mirror's probe while it runs."""

    mirror: Mirror
    part: str
    needs: int
    local_files: dict[str, FileStatus] = dataclasses.field(default_factory=dict)
    page_results: dict[str, list[simple_api.IndexFile] | str] = dataclasses.field(default_factory=dict)
    pages: list[IndexPage] = dataclasses.field(default_factory=list)
    files: list[tuple[FileStatus, str]] = dataclasses.field(default_factory=list)
    untrusted: str | None = None
    latency: Latency | None = None
    latency_why: str | None = None
    commit: str | None = None
    branch: Branch | None = None
    first_url: str = ""

    def measured(self) -> MirrorMeasurement:
        """Return the measurement so far, in the form that is stored."""
        profile = self.mirror.profile
        all_local = len({status.need for status in self.local_files.values()}) >= self.needs
        return MirrorMeasurement(
            mirror=self.mirror.name,
            part=self.part,
            at=time.time(),
            own=own_hosts(profile, self.part),
            region=self.mirror.region,
            closed=profile.closed,
            origin=is_origin(profile, self.part),
            needs=self.needs,
            missing=None if network_sources(profile, self.part) or all_local else missing_index_reason(self.part),
            untrusted=self.untrusted,
            latency=self.latency,
            latency_why=self.latency_why,
            pages=self.pages,
            files=[status for status, _ in self.files],
            commit=self.commit,
            branch=self.branch,
        )


def probe(mirrors: Sequence[Mirror], packages: Sequence[WantedPackage], budget: Budget) -> list[MirrorMeasurement]:
    """Return a measurement of every mirror; `packages` are all packages of one part of a lock."""
    part = packages[0].part
    states = [ProbeState(mirror, part, len(packages)) for mirror in mirrors]
    # A mirror whose page never ends must not use up the time for the files of the others.
    pages, files = budget.share(0.4), budget.share(0.8)
    run_parallel(lambda state: _read_pages(state, packages, pages), states, len(states), pages)
    listed = files_by_hash(
        page for state in list(states) for page in list(state.page_results.values()) if not isinstance(page, str)
    )
    run_parallel(lambda state: _request_package_files(state, packages, listed, files), states, len(states), files)
    return measure_rates(states, budget)


def measure_rates(states: Sequence[ProbeState], budget: Budget) -> list[MirrorMeasurement]:
    """Return the measurements, with the rates of those that pass; the lowest latency first, as the budget may end."""
    measurements = [(state, state.measured()) for state in states]
    peers = peer_facts(measured for _, measured in measurements)
    nearest = sorted(measurements, key=lambda pair: pair[1].latency.total if pair[1].latency else math.inf)
    by_state = {
        id(state): _with_rate(state, _with_hashes(state, measured, peers, budget), peers, budget)
        for state, measured in nearest
    }
    return [by_state[id(state)] for state in states]


def _read_pages(state: ProbeState, packages: Sequence[WantedPackage], budget: Budget) -> None:
    state.local_files = matching_files(state.mirror.profile, packages)
    indexes = network_sources(state.mirror.profile, state.part)
    remote = [package for package in packages if not state.local_files.keys() >= set(package.sha256)]
    urls = list(dict.fromkeys(simple_api.page_url(index, package.project) for package in remote for index in indexes))
    if not urls:
        return
    state.first_url = urls[0]
    state.latency, state.latency_why = measure_latency(state.mirror.client, state.first_url, budget)
    run_parallel(lambda url: read_page(state, url, budget), urls, _THREADS, budget)


def read_page(state: ProbeState, url: str, budget: Budget) -> None:
    """Read an index page into the state, or store why it could not be read."""
    try:
        with state.mirror.client.get(url, {"Accept": simple_api.ACCEPT}) as response:
            page, files = read_index_page(response, budget)
    except UntrustedError as error:
        state.untrusted = f"{urlsplit(url).netloc}: {error}"
        state.page_results[url] = str(error)
    except NetworkError as error:
        state.page_results[url] = str(error)
    else:
        state.pages.append(page)
        state.page_results[url] = files


def measure_latency(client: Client, url: str, budget: Budget) -> tuple[Latency | None, str | None]:
    """Return the median latency of three handshakes, or None and the reason."""
    handshakes = []
    try:
        for _ in range(_HANDSHAKES):
            handshake = client.handshake(url)
            if handshake is None:
                return None, "reached through a proxy"
            handshakes.append(handshake)
            if not budget.seconds:
                break
    except NetworkError as error:
        return None, str(error)
    tls = [handshake.tls for handshake in handshakes if handshake.tls is not None]
    return Latency(
        dns=statistics.median(handshake.dns for handshake in handshakes),
        tcp=statistics.median(handshake.tcp for handshake in handshakes),
        tls=statistics.median(tls) if tls else None,
        version=handshakes[-1].version,
        alpn=handshakes[-1].alpn,
        times=len(handshakes),
    ), None


def _request_package_files(
    state: ProbeState, packages: Sequence[WantedPackage], listed: Mapping[str, ListedFile], budget: Budget
) -> None:
    indexes = network_sources(state.mirror.profile, state.part)
    candidates_by_file = [
        options for package in packages for options in _candidates_of(state, package, indexes, listed)
    ]
    candidates_by_file = candidates_by_file if indexes or state.local_files else []
    request_files(state, candidates_by_file, budget)


def request_files(state: ProbeState, candidates_by_file: Sequence[Sequence[FileCandidate]], budget: Budget) -> None:
    """Request the first byte of every file; the status of a file without an answer in time says so."""
    results = run_parallel(lambda options: _request_file(state, options, budget), candidates_by_file, _THREADS, budget)
    state.files = [
        result or (msgspec.structs.replace(options[0].status, why=OUT_OF_TIME), options[0].url)
        for result, options in zip(results, candidates_by_file, strict=True)
    ]


def _candidates_of(
    state: ProbeState, packages: WantedPackage, indexes: Sequence[Index], listed: Mapping[str, ListedFile]
) -> list[list[FileCandidate]]:
    results = [state.page_results.get(simple_api.page_url(index, packages.project), OUT_OF_TIME) for index in indexes]
    pages = [page for page in results if not isinstance(page, str)]
    local = [
        [FileCandidate(state.local_files[digest], "")] for digest in packages.sha256 if digest in state.local_files
    ]
    remote = dataclasses.replace(
        packages, sha256=tuple(digest for digest in packages.sha256 if digest not in state.local_files)
    )
    on_network = candidates(remote, pages, [page for page in results if isinstance(page, str)], listed)
    # If one file of a package is local, another file of it that no page lists is not missing.
    return [*local, *(options for options in on_network if options[0].url)] if local else on_network


def _request_file(state: ProbeState, options: Sequence[FileCandidate], budget: Budget) -> tuple[FileStatus, str]:
    """Request a file's first byte from each candidate until one has it."""
    failures = []
    for candidate in options:
        if not candidate.url:
            return candidate.status, ""
        response = _request_first_byte(state, candidate.url)
        if isinstance(response, FileResponse) and (response.status in _SUCCESS or response.total == 0):
            return msgspec.structs.replace(candidate.status, reached=response), candidate.url
        failures.append((candidate, response))
        if not budget.seconds:
            break
    candidate, response = failures[0]
    reached = response if isinstance(response, FileResponse) else None
    why = f"{reached.hosts[-1]} answers {reached.status}" if reached else str(response)
    return msgspec.structs.replace(candidate.status, reached=reached, why=why), ""


def _request_first_byte(state: ProbeState, url: str) -> FileResponse | str:
    try:
        with state.mirror.client.get(url, {"Range": "bytes=0-0"}) as response:
            # Read the one byte, so that the connection can be reused.
            next(response.decoded_chunks(1), b"")
            return _file_response(response)
    except UntrustedError as error:
        state.untrusted = f"{urlsplit(url).netloc}: {error}"
        return str(error)
    except NetworkError as error:
        return str(error)


def _file_response(response: HttpResponse) -> FileResponse:
    headers_by_name = {name.lower(): value for headers in reversed(response.passed) for name, value in headers.items()}
    return FileResponse(
        status=response.status,
        hosts=list(response.hosts),
        ranged=response.status == HTTPStatus.PARTIAL_CONTENT
        and range_responses.content_range_size(response.headers) is not None,
        total=range_responses.file_size(response.status, response.headers),
        etag=range_responses.etag_of(response.headers),
        modified=response.headers.get("Last-Modified"),
        commit=headers_by_name.get("x-repo-commit"),
        linked=headers_by_name.get("x-linked-etag", "").strip('"') or None,
        xet="x-xet-hash" in headers_by_name,
    )


def _with_hashes(
    state: ProbeState, measurement: MirrorMeasurement, peers: PeerFacts, budget: Budget
) -> MirrorMeasurement:
    """Return the measurement with the hashes of the files that no index lists, if all else of the mirror passes."""
    failed = {
        criterion.name for criterion in criteria_of(measurement, peers) if criterion.hard and not criterion.passed
    }
    if failed != {"hash"} or not any(needs_hashing(file) for file, _ in state.files):
        return measurement
    state.files = [
        (_with_hash(state.mirror.client, file, url, budget) if needs_hashing(file) else file, url)
        for file, url in state.files
    ]
    return msgspec.structs.replace(measurement, files=[status for status, _ in state.files])


def _with_hash(client: Client, file: FileStatus, url: str, budget: Budget) -> FileStatus:
    """Return the status with the sha256 of the file, or with the reason why it was not downloaded whole."""
    if _served_size(file) > budget.left:
        why = f"the file has {_served_size(file)} bytes, more than are left of the probe's budget; raise --max-bytes"
        return msgspec.structs.replace(file, hash_why=why)
    digest = hashlib.sha256()
    try:
        with client.get(url) as response:
            if response.status != HTTPStatus.OK:
                return msgspec.structs.replace(file, hash_why=f"{response.hosts[-1]} answers {response.status}")
            for chunk in response.chunks(CHUNK_BYTES):
                budget.spend(len(chunk))
                digest.update(chunk)
    except NetworkError as error:
        return msgspec.structs.replace(file, hash_why=f"the download ended early: {error}")
    return msgspec.structs.replace(file, hashed=digest.hexdigest())


def _with_rate(
    state: ProbeState, measurement: MirrorMeasurement, peers: PeerFacts, budget: Budget
) -> MirrorMeasurement:
    """Return the measurement with the rate, for a mirror that passes all criteria so far; a 404 has no speed."""
    if not all_pass(criteria_of(measurement, peers)):
        return msgspec.structs.replace(measurement, rate_why="not measured: a criterion failed before")
    # Measure the latency again, alone: next to lookups of dead names one lookup took 5 s here, alone 3 ms.
    repeated = measure_latency(state.mirror.client, state.first_url, budget)[0] if state.first_url else None
    measurement = msgspec.structs.replace(measurement, latency=repeated or measurement.latency)
    served = [pair for pair in state.files if pair[1]]
    if not served:
        return msgspec.structs.replace(
            measurement, rate_why="not measured: all files are in this machine's directories"
        )
    file, url = max(served, key=lambda pair: _served_size(pair[0]))
    # Half of a small file: a range that starts at 0 proves nothing.
    size = min(RANGE, max(1, _served_size(file) // 2))
    if file.reached is None or not _served_size(file) or budget.left < min(size, CHUNK_BYTES) or not budget.seconds:
        return msgspec.structs.replace(
            measurement, rate_why="not measured: the probe's budget of bytes or seconds is used up"
        )
    size = min(size, budget.left)
    try:
        rate = _measure_rate(state.mirror.client, url, file.reached, size, budget)
    except NetworkError as error:
        return msgspec.structs.replace(measurement, range_fault=str(error))
    return msgspec.structs.replace(measurement, rate=rate)


def _served_size(file: FileStatus) -> int:
    return file.reached.total or 0 if file.reached is not None else 0


def _measure_rate(client: Client, url: str, reached: FileResponse, size: int, budget: Budget) -> Rate:
    """Download a range in the middle of a file. Raise NetworkError for a response that is not that range."""
    total = reached.total or 0
    offset = (total - size) // 2
    task = RangeTask(0, Span(offset, offset + size), 0, reached.etag)
    began, received, why = time.monotonic(), 0, None
    with client.get(url, range_responses.range_headers(task)) as response:
        failure = range_responses.range_failure(task, response.status, response.headers, total, time.time())
        if failure is not None:
            raise NetworkError(failure.reason)
        try:
            for chunk in response.decoded_chunks(CHUNK_BYTES):
                received += len(chunk)
                budget.spend(len(chunk))
                if time.monotonic() - began > RANGE_SECONDS:
                    break
        except NetworkError as error:
            why = str(error)
        return Rate(bytes=received, seconds=time.monotonic() - began, offset=offset, host=response.hosts[-1], why=why)
