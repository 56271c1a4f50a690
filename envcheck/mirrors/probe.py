"""Probe mirrors for the files that are needed, in parallel and within a time, and choose those that pass.

Pages and first bytes are requested in parallel; rates are measured one mirror at a time, as they share a network link.
No speed outweighs a failed criterion.
"""

import dataclasses
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec

from envcheck.counting import counted
from envcheck.errors import UnavailableError
from envcheck.mirrors.index import (
    ACCEPT,
    CLIENT_PROFILES,
    PYPI,
    LockedPackage,
    Page,
    listed_files,
    match_files,
    network_sources,
    page_url,
)
from envcheck.mirrors.net.client import Client, hub_client
from envcheck.mirrors.net.network_errors import NetworkError, UntrustedError
from envcheck.mirrors.net.responses import HttpResponse, file_size
from envcheck.mirrors.net.waits import map_within
from envcheck.mirrors.profiles import model
from envcheck.mirrors.profiles.load import load, presets
from envcheck.mirrors.profiles.model import CLIENT_DEFAULT, Credential, Index, Profile

SECONDS: Final = 45.0
# The range of a rate: bytes, and seconds after which it is broken off.
_RANGE: Final = 8 << 20
_RANGE_SECONDS: Final = 5.0
_CHUNK: Final = 1 << 16
_THREADS: Final = 6
_OUT_OF_TIME: Final = "the probe's time ran out"


class FileStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One needed file on one mirror. Sizes are in bytes.

    `listed`: its page has a hash of the lock, or no hashes but its name, or nothing. `size` is what its pages
    say; `why` says what is missing. The rest is the response to a request for the first byte, after redirects.
    """

    need: str
    listed: Literal["hash", "name", "absent"]
    sha256: str | None = None
    size: int | None = None
    why: str | None = None
    status: int | None = None
    hosts: list[str] = []
    ranged: bool = False
    served_size: int | None = None

    @property
    def available(self) -> bool:
        """Tell whether the file is there; a range of an empty file is refused."""
        return self.status in {200, 206} or self.served_size == 0


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """A download of a range in the middle of the largest file. `why` says why it ended early."""

    bytes: int
    seconds: float
    why: str | None = None

    @property
    def speed(self) -> float:
        """Return bytes per second."""
        return self.bytes / self.seconds if self.seconds > 0 else 0.0


class MirrorMeasurement(msgspec.Struct, frozen=True, kw_only=True):
    """All measurements of one mirror for a part of a lock.

    `own` are the hosts that the profile names; only the clients' own default (`origin`) may redirect to others.
    `latency`: the seconds until the first answer. `range_fault` says why a range in the middle of a file failed.
    """

    mirror: str
    part: str
    own: list[str]
    closed: bool
    origin: bool
    needs: int
    missing: str | None
    untrusted: str | None
    plain: bool
    latency: float | None
    files: list[FileStatus]
    rate: Rate | None = None
    range_fault: str | None = None


class Criterion(msgspec.Struct, frozen=True, kw_only=True):
    """One criterion. `passed` is None if undetermined. A hard criterion that is not passed excludes the mirror."""

    name: str
    passed: bool | None
    why: str
    hard: bool = True


class RankedMirror(msgspec.Struct, frozen=True, kw_only=True, rename={"criteria": "gates"}):
    """A ranked mirror with the reasons for its place."""

    mirror: str
    part: str
    passed: bool
    criteria: list[Criterion]
    measured: MirrorMeasurement

    @property
    def failed(self) -> list[Criterion]:
        """Return the hard criteria that are not passed."""
        return [criterion for criterion in self.criteria if criterion.hard and not criterion.passed]


@dataclasses.dataclass(frozen=True)
class Mirror:
    """A profile to probe, and a client with its CA and credentials."""

    name: str
    profile: Profile
    client: Client


@dataclasses.dataclass(frozen=True)
class Target:
    """What to probe for: the packages of a lock's part, as "pypi" or "pytorch/cu128"."""

    part: str
    packages: Sequence[LockedPackage]

    def able(self, mirrors: Sequence[Mirror]) -> list[Mirror]:
        """Return the mirrors that have this kind of index."""
        return [mirror for mirror in mirrors if network_sources(mirror.profile, self.part)]

    def missing_reason(self) -> str:
        """Return why a profile without an index of its own is not a mirror for this."""
        kind = "Python" if self.part == PYPI else "PyTorch"
        return f"the profile names no {kind} index: packages would come from the client's own default"


def lock_targets(packages: Iterable[LockedPackage]) -> list[Target]:
    """Return the targets for the packages of locks, one for each index."""
    by_part: dict[str, list[LockedPackage]] = {}
    for package in packages:
        by_part.setdefault(package.index, []).append(package)
    return [Target(part, of_part) for part, of_part in by_part.items()]


class _Probe:
    """The probe of one mirror while it runs. `files` has the status of each file, and a URL that has it."""

    def __init__(self, mirror: Mirror, target: Target) -> None:
        self.mirror, self.target = mirror, target
        self.pages: dict[str, Page] = {
            page_url(index, package.project): NetworkError(_OUT_OF_TIME)
            for package in target.packages
            for index in network_sources(mirror.profile, target.part)
        }
        self.files: list[tuple[FileStatus, str]] = []
        self.untrusted: str | None = None
        self.latency: float | None = None

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

    def read_page(self, url: str) -> None:
        """Read a page of an index."""
        try:
            with self.get(url, {"Accept": ACCEPT}) as answer:
                self.pages[url] = listed_files(answer, for_pip=True)
        except NetworkError as error:
            self.pages[url] = error

    def _listed(self, package: LockedPackage) -> list[tuple[FileStatus, tuple[str, ...]]]:
        sources = network_sources(self.mirror.profile, self.target.part)
        pages = [self.pages[page_url(index, package.project)] for index in sources]
        try:
            located = match_files(package, pages)
        except UnavailableError as error:
            return [(FileStatus(need=package.label, listed="absent", why=error.message.partition(": ")[2]), ())]
        hashed = {file.sha256 for page in pages if isinstance(page, list) for file in page}
        ways: list[Literal["hash", "name"]] = ["hash" if file.sha256 in hashed else "name" for file in located]
        return [
            (FileStatus(need=package.label, listed=way, sha256=file.sha256, size=file.size), file.urls)
            for way, file in zip(ways, located, strict=True)
        ]

    def request_files(self, seconds: float) -> None:
        """Request the first byte of every file."""
        candidates = [pair for package in self.target.packages for pair in self._listed(package)]
        done = map_within(lambda pair: self._request_file(*pair), candidates, _THREADS, seconds)
        late = [(msgspec.structs.replace(status, why=_OUT_OF_TIME), "") for status, _ in candidates]
        self.files = [one if isinstance(one, tuple) else missed for one, missed in zip(done, late, strict=True)]

    def _request_file(self, status: FileStatus, urls: Sequence[str]) -> tuple[FileStatus, str]:
        """Return the status with the answer of the first URL that has the file, or with the first failure."""
        failed: FileStatus | None = None
        for url in urls:
            try:
                with self.get(url, {"Range": "bytes=0-0"}) as answer:
                    next(answer.chunks(1), b"")  # so that the connection can be reused
                    reached = _with_answer(status, answer)
            except NetworkError as error:
                failed = failed or msgspec.structs.replace(status, why=str(error))
                continue
            if reached.available:
                return reached, url
            failed = failed or msgspec.structs.replace(reached, why=f"{reached.hosts[-1]} answers {reached.status}")
        return failed or status, ""

    def measured(self) -> MirrorMeasurement:
        """Return the measurement so far."""
        profile, target = self.mirror.profile, self.target
        return MirrorMeasurement(
            mirror=self.mirror.name,
            part=target.part,
            own=own_hosts(profile, self.pages),
            closed=profile.closed,
            origin=is_origin(profile, target.part),
            needs=len(target.packages),
            missing=None if self.pages else target.missing_reason(),
            untrusted=self.untrusted,
            plain=any(url.startswith("http://") for url in self.pages),
            latency=self.latency,
            files=[status for status, _ in self.files],
        )


def _with_answer(status: FileStatus, response: HttpResponse) -> FileStatus:
    size = file_size(response.status, response.headers)
    return msgspec.structs.replace(
        status,
        status=response.status,
        hosts=list(response.hosts),
        ranged=response.status == HTTPStatus.PARTIAL_CONTENT and size is not None,
        served_size=size,
    )


def own_hosts(profile: Profile, urls: Iterable[str]) -> list[str]:
    """Return the mirror's own hosts: all that its profile names, for any part, and those of these URLs."""
    named = [index.url for index in [*profile.pypi, *profile.pytorch]]
    return sorted({urlsplit(url).netloc for url in [*urls, *named, *profile.hf.endpoints] if "://" in url} - {""})


def is_origin(profile: Profile, part: str) -> bool:
    """Tell whether a part comes from the client's default only."""
    indexes = [index for index in profile.indexes(part) if index.local is None]
    return all(index.url == CLIENT_DEFAULT for index in indexes) and (bool(indexes) or profile.name in CLIENT_PROFILES)


def ranked_mirrors(target: Target, mirrors: Sequence[Mirror], seconds: float = SECONDS) -> list[RankedMirror]:
    """Measure the mirrors for every file of the target within so many seconds, and return them ranked."""
    end, probes = time.monotonic() + seconds, [_Probe(mirror, target) for mirror in mirrors]
    # A mirror whose page never ends must not use up the time for the files of the others.
    reads = [(one, url) for one in probes for url in one.pages]
    map_within(lambda pair: pair[0].read_page(pair[1]), reads, _THREADS * len(probes), seconds * 0.4)
    left = max(0.0, end - time.monotonic()) * 0.7
    map_within(lambda one: one.request_files(left), probes, len(probes), left + 1.0)
    measured = [one.measured() for one in probes]
    # The nearest first, as the time may end.
    for number in sorted(range(len(probes)), key=lambda number: measured[number].latency or math.inf):
        if judged(measured[number]).passed and time.monotonic() < end:
            try:
                measured[number] = msgspec.structs.replace(measured[number], rate=_rate(probes[number], end))
            except NetworkError as error:
                measured[number] = msgspec.structs.replace(measured[number], range_fault=str(error))
    return sorted(map(judged, measured), key=_order)


def _order(ranked: RankedMirror) -> tuple[bool, bool, bool, float]:
    """Return what mirrors are sorted by: those that pass, and redirect to no hosts of others, then by rate."""
    measured = ranked.measured
    redirects = not measured.origin and any(one.name == "stays" and not one.passed for one in ranked.criteria)
    return not ranked.passed, measured.latency is None, redirects, -(measured.rate.speed if measured.rate else 0.0)


def judged(measured: MirrorMeasurement) -> RankedMirror:
    """Return the mirror with every criterion that can be told, in the order in which failures are reported."""
    criteria = list(_criteria(measured))
    passed = all(criterion.passed for criterion in criteria if criterion.hard)
    return RankedMirror(mirror=measured.mirror, part=measured.part, passed=passed, criteria=criteria, measured=measured)


def _criteria(measured: MirrorMeasurement) -> Iterator[Criterion]:
    if measured.untrusted is not None:
        yield Criterion(name="tls", passed=False, why=measured.untrusted)
    elif measured.latency is not None and measured.plain:
        yield Criterion(name="tls", passed=None, why="plain http: only the lock's hashes protect the bytes", hard=False)
    elif measured.latency is not None:
        yield Criterion(name="tls", passed=True, why="every certificate is trusted")
    yield _coverage(measured)
    served = [file for file in measured.files if file.available]
    if served:
        yield _hash(served)
        yield _ranges(measured, served)
        yield _stays(measured, served)


def _coverage(measured: MirrorMeasurement) -> Criterion:
    if measured.missing is not None:
        return Criterion(name="coverage", passed=False, why=measured.missing)
    lacking = {file.need: file.why for file in measured.files if not file.available}
    why = f"has {measured.needs - len(lacking)} of {counted(measured.needs, 'file')}"
    if lacking:
        need, reason = next(iter(lacking.items()))
        more = f" (and {len(lacking) - 1} more)" if len(lacking) > 1 else ""
        return Criterion(name="coverage", passed=False, why=f"{why}; {need}: {reason}{more}")
    return Criterion(name="coverage", passed=True, why=why)


def _hash(served: Sequence[FileStatus]) -> Criterion:
    wrong = next(
        (file for file in served if None not in {file.size, file.served_size} and file.size != file.served_size), None
    )
    if wrong is not None:
        why = f"{wrong.need}: {wrong.hosts[-1]} has {wrong.served_size} bytes, expected {wrong.size}"
        return Criterion(name="hash", passed=False, why=why)
    named = sum(file.listed == "name" for file in served)
    ways = {"hash": len(served) - named, "name, which a fetch verifies": named}
    why = ", ".join(f"{counted(number, 'file')} by {way}" for way, number in ways.items() if number)
    return Criterion(name="hash", passed=True, why=why)


def _ranges(measured: MirrorMeasurement, served: Sequence[FileStatus]) -> Criterion:
    if measured.range_fault is not None:
        return Criterion(name="ranges", passed=False, why=f"range in the middle of a file: {measured.range_fault}")
    without = next((file for file in served if file.served_size and not file.ranged), None)
    if without is not None:
        why = f"{without.hosts[-1]} answers {without.status} to a range: no resume or split"
        return Criterion(name="ranges", passed=False, why=why)
    return Criterion(name="ranges", passed=True, why="206 with the right Content-Range")


def _stays(measured: MirrorMeasurement, served: Sequence[FileStatus]) -> Criterion:
    foreign = sorted({host for file in served for host in file.hosts} - set(measured.own))
    if not foreign:
        return Criterion(name="stays", passed=True, why="no request left the mirror's own hosts", hard=measured.closed)
    away = sum(not set(file.hosts) <= set(measured.own) for file in served)
    last = "" if measured.closed or measured.origin else "; it comes after mirrors that serve their own files"
    why = f"{away} of {counted(len(served), 'file')} from {', '.join(foreign)}{last}"
    return Criterion(name="stays", passed=False, why=why, hard=measured.closed)


def _rate(one: _Probe, end: float) -> Rate | None:
    """Measure a range in the middle of the mirror's largest file: one that starts at 0 proves nothing."""
    file, url = max(one.files, key=lambda pair: pair[0].served_size or 0)
    total = file.served_size or 0
    size = min(_RANGE, total // 2)
    if not size:
        return None
    start, began, received, why = (total - size) // 2, time.monotonic(), 0, None
    with one.mirror.client.get(url, {"Range": f"bytes={start}-{start + size - 1}"}) as answer:
        answer.demand_range(start, start + size, total)
        try:
            for chunk in answer.chunks(_CHUNK):
                received += len(chunk)
                if time.monotonic() > min(began + _RANGE_SECONDS, end):
                    break
        except NetworkError as error:
            why = str(error)
    return Rate(bytes=received, seconds=time.monotonic() - began, why=why)


def default_mirrors() -> list[Mirror]:
    """Return this machine's configuration, what `envcheck mirror use` chose, and every preset."""
    names = ["host", *([str(model.read_choice())] if model.read_choice() else []), *presets()]
    return [load_mirror(name) for name in dict.fromkeys(names)]


def load_mirror(name: str) -> Mirror:
    """Return the mirror of a profile's name or path, with a client that uses the profile's CA and credentials."""
    profile = load(name)
    shown = name if name in {"host", "none"} else profile.name
    return Mirror(shown, profile, hub_client(profile, probes=True, connect=4.0, read=8.0))


def choose(targets: Sequence[Target], mirrors: Sequence[Mirror]) -> tuple[Profile, list[str]]:
    """Probe, and return a profile of the mirrors that pass, the best first, with a reason for each mirror.

    Mirrors that fail only `ranges` come last, because pip and uv need no ranges. A profile has one CA and one netrc
    file: mirrors that need others than the first are left out. Each host gets only the credentials of its own profile.
    What was not probed (apt, the registry, Hugging Face) comes from the first mirror's profile. Raise UnavailableError
    if no mirror has a part.
    """
    ranked = [one for target in targets for one in ranked_mirrors(target, target.able(mirrors))]
    profiles = {mirror.name: mirror.profile for mirror in mirrors}
    usable = [one for one in ranked if one.passed]
    usable += [one for one in ranked if {criterion.name for criterion in one.failed} == {"ranges"}]
    needs = [(profiles[one.mirror].ca, profiles[one.mirror].netrc) for one in usable]
    first = next(iter(profiles.values()), Profile(name="none"))
    ca, netrc = next((need for need in needs if need != (None, None)), (first.ca, first.netrc))
    used = [one for one, need in zip(usable, needs, strict=True) if need in {(None, None), (ca, netrc)}]
    reasons = [line for target in targets for line in _demand_source(target, ranked, used, profiles.values())]
    credentials: dict[str, Credential] = {}
    for one in used:
        credentials = {**profiles[one.mirror].credentials, **credentials}
    profile = msgspec.structs.replace(
        first,
        pypi=_indexes(used, profiles, PYPI),
        pytorch=_indexes(used, profiles, "pytorch"),
        ca=ca,
        netrc=netrc,
        credentials=credentials,
    )
    return profile, [*reasons, *(_reason(one, used) for one in sorted(ranked, key=lambda one: one not in used))]


def _demand_source(
    target: Target, ranked: Sequence[RankedMirror], used: Sequence[RankedMirror], profiles: Iterable[Profile]
) -> list[str]:
    """Return a reason for a target that only directories of this machine have. Raise UnavailableError if none has."""
    if any(one.part == target.part for one in used):
        return []
    if _local_indexes(profiles, target.part.partition("/")[0]):
        return [f"{target.part}: no mirror, only this machine's directories of wheels"]
    failed = [f"{one.mirror}: {fault.why}" for one in ranked if one.part == target.part for fault in one.failed]
    message = f"no mirror has all files of {target.part}: {'; '.join(failed[:3]) or 'no mirror is known'}"
    raise UnavailableError(message, fix="run `envcheck mirror probe`, or pass your own profile with --mirror")


def _indexes(used: Sequence[RankedMirror], profiles: Mapping[str, Profile], family: str) -> list[Index]:
    part = PYPI if family == PYPI else "pytorch/{variant}"
    remote: list[Index] = []
    for profile in (profiles[one.mirror] for one in used if one.part.partition("/")[0] == family):
        remote += [index for index in profile.indexes(family) if index.local is None] or network_sources(profile, part)
    return list(dict.fromkeys([*_local_indexes(profiles.values(), family), *remote]))


def _local_indexes(profiles: Iterable[Profile], family: str) -> list[Index]:
    return [index for profile in profiles for index in profile.indexes(family) if index.local is not None]


def _reason(one: RankedMirror, used: Sequence[RankedMirror]) -> str:
    if one not in used:
        failed = one.failed[0].why if one.failed else "it needs another CA or netrc file"
        return f"{one.part}: not {one.mirror}: {failed}"
    return f"{one.part}: {one.mirror} ({speed_of(one) if one.passed else 'no ranges'})"


def speed_of(one: RankedMirror) -> str:
    """Return the rate as text."""
    return f"{one.measured.rate.speed / 1e6:.1f} MB/s" if one.measured.rate is not None else "no rate"
