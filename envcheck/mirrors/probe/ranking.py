"""Rank mirrors by what was measured: criteria that must pass, then the rate. Pure.

No speed outweighs a failed criterion, and a mirror that redirects to hosts of others comes after all that do not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from envcheck.counting import counted

SCHEMA: Final = "envcheck/probe/2"
# How a mirror lists a file: with a hash of the lock; by its exact name on a page without hashes; or not at all.
Listing = Literal["hash", "name", "absent"]


class FileResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The response to a request for a file's first byte, after all redirects. Sizes in bytes."""

    status: int
    hosts: list[str]
    ranged: bool
    total: int | None = None
    commit: str | None = None
    linked: str | None = None

    @property
    def available(self) -> bool:
        """Tell whether the file is there."""
        return self.status in {200, 206} or self.total == 0


class FileStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of one needed file on one mirror. `why` says what is missing; `url` has no query.

    `hashed` is the sha256 of the served bytes, if they were downloaded for it; `hash_why` says why they were not.
    """

    need: str
    listed: Listing
    sha256: str | None = None
    size: int | None = None
    url: str | None = None
    reached: FileResponse | None = None
    why: str | None = None
    hashed: str | None = None
    hash_why: str | None = None

    @property
    def served_size(self) -> int | None:
        """Return the size in bytes that the serving host reports, or None."""
        return self.reached.total if self.reached is not None else None

    @property
    def available(self) -> bool:
        """Tell whether the file is there."""
        return self.reached is not None and self.reached.available


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """A download of a range in the middle of the largest file. `why` says why it ended early."""

    bytes: int
    seconds: float
    host: str
    why: str | None = None

    @property
    def speed(self) -> float:
        """Return bytes per second."""
        return self.bytes / self.seconds if self.seconds > 0 else 0.0


class MirrorMeasurement(msgspec.Struct, frozen=True, kw_only=True):
    """All measurements of one mirror for one part of a lock. `at` is the time in seconds since the epoch.

    `own` are the hosts that the profile names. `origin` marks the clients' own default, which may redirect to other
    hosts. `latency`: the seconds until the first answer. `rate_why` says why there is no `rate`; `range_fault` says why
    a range request in the middle of a file failed.
    """

    schema: Literal["envcheck/probe/2"] = "envcheck/probe/2"
    mirror: str
    part: str
    at: float
    own: list[str]
    closed: bool = False
    origin: bool = False
    needs: int = 0
    missing: str | None = None
    untrusted: str | None = None
    plain: bool = False
    latency: float | None = None
    pages: int = 0
    files: list[FileStatus] = []
    rate: Rate | None = None
    rate_why: str | None = None
    range_fault: str | None = None
    commit: str | None = None

    @property
    def answered(self) -> bool:
        """Tell whether any host answered."""
        return bool(self.pages) or any(file.reached is not None for file in self.files)


REDIRECT_NOTE: Final = "ranked after all mirrors that serve the files from their own hosts, whatever its rate"
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


class Criterion(msgspec.Struct, frozen=True, kw_only=True):
    """One criterion. `passed` is None if undetermined. A hard criterion that is not passed excludes the mirror."""

    name: str
    passed: bool | None
    hard: bool
    why: str


class RankedMirror(msgspec.Struct, frozen=True, kw_only=True, rename={"criteria": "gates"}):
    """A ranked mirror with the reasons for its place."""

    mirror: str
    part: str
    passed: bool
    criteria: list[Criterion]
    notes: list[str]
    measured: MirrorMeasurement

    @property
    def failed_criteria(self) -> set[str]:
        """Return the names of the hard criteria that are not passed."""
        return {criterion.name for criterion in self.criteria if criterion.hard and not criterion.passed}

    @property
    def redirects_out(self) -> bool:
        """Tell whether the mirror redirects to hosts of others; the clients' own default may do so."""
        return not self.measured.origin and any(
            criterion.name == "stays" and criterion.passed is False for criterion in self.criteria
        )


def rank(measurements: Sequence[MirrorMeasurement], *, no_redirects: bool = False) -> list[RankedMirror]:
    """Return the mirrors in order: those that pass first, then by rate; ties keep their order."""
    sizes = agreed_sizes(measurements)
    ranked = [_ranked(measurement, sizes, no_redirects=no_redirects) for measurement in measurements]
    return sorted(ranked, key=_order)


def _order(ranked: RankedMirror) -> tuple[bool, bool, bool, float]:
    rate = ranked.measured.rate
    speed = rate.speed if rate is not None else 0.0
    return not ranked.passed, not ranked.measured.answered, ranked.redirects_out, -speed


def _ranked(measurement: MirrorMeasurement, sizes: Mapping[str, int], *, no_redirects: bool) -> RankedMirror:
    criteria = criteria_of(measurement, sizes, no_redirects=no_redirects)
    ranked = RankedMirror(
        mirror=measurement.mirror,
        part=measurement.part,
        passed=all_pass(criteria),
        criteria=criteria,
        notes=[],
        measured=measurement,
    )
    note = ranked.passed and ranked.redirects_out
    return msgspec.structs.replace(ranked, notes=[REDIRECT_NOTE]) if note else ranked


def agreed_sizes(measurements: Iterable[MirrorMeasurement]) -> dict[str, int]:
    """Return the size in bytes by hash: the size on a page, else the size if all mirrors with that hash agree."""
    listed = [file for one in measurements for file in one.files if file.listed == "hash" and file.sha256]
    served: dict[str, set[int]] = {}
    for file in listed:
        if file.served_size is not None:
            served.setdefault(str(file.sha256), set()).add(file.served_size)
    agreed = {digest: sizes.pop() for digest, sizes in served.items() if len(sizes) == 1}
    return agreed | {str(file.sha256): file.size for file in listed if file.size is not None}


def criteria_of(
    measurement: MirrorMeasurement, sizes: Mapping[str, int], *, no_redirects: bool = False
) -> list[Criterion]:
    """Return every criterion of a mirror, in the order in which failures are reported."""
    common = [
        _tls(measurement),
        _coverage(measurement),
        _hash(measurement, sizes),
        _ranges(measurement),
        _stays(measurement, hard=no_redirects or measurement.closed),
    ]
    return common if measurement.commit is None else [*common, _commit(measurement, measurement.commit)]


def all_pass(criteria: Iterable[Criterion]) -> bool:
    """Tell whether every hard criterion is passed; an undetermined one is not."""
    return all(criterion.passed for criterion in criteria if criterion.hard)


def _criterion(name: str, passed: bool | None, why: str, *, hard: bool = True) -> Criterion:  # noqa: FBT001 (a verdict)
    return Criterion(name=name, passed=passed, hard=hard, why=why)


def _tls(measurement: MirrorMeasurement) -> Criterion:
    if measurement.untrusted is not None:
        return _criterion("tls", passed=False, why=measurement.untrusted)
    if not measurement.answered:
        return _criterion("tls", passed=None, hard=False, why="nothing answered")
    if measurement.plain:
        why = "plain http: only the lock's hashes protect the bytes"
        return _criterion("tls", passed=None, hard=False, why=why)
    return _criterion("tls", passed=True, why="every certificate is trusted")


def _coverage(measurement: MirrorMeasurement) -> Criterion:
    if measurement.missing is not None:
        return _criterion("coverage", passed=False, why=measurement.missing)
    missing = [file for file in measurement.files if not file.available]
    if not measurement.files:
        return _criterion("coverage", passed=False, why="no file was requested, or no answer came in time")
    if missing:
        lacking = {file.need for file in missing}
        available = len({file.need for file in measurement.files} - lacking)
        more = f" (and {len(lacking) - 1} more)" if len(lacking) > 1 else ""
        why = f"has {available} of {counted(measurement.needs, 'file')}; {missing[0].need}: {missing[0].why}{more}"
        if measurement.commit is not None and all(file.reached and file.reached.status == 404 for file in missing):  # noqa: PLR2004 (HTTP's Not Found)
            why = f"lacks commit {measurement.commit[:12]}: {why}" if not available else why
        return _criterion("coverage", passed=False, why=why)
    why = (
        f"has {measurement.needs} of {counted(measurement.needs, 'file')}, each one reached on the host that serves it"
    )
    return _criterion("coverage", passed=True, why=why)


def _hash(measurement: MirrorMeasurement, sizes: Mapping[str, int]) -> Criterion:
    faults = [fault for file in measurement.files if (fault := _mismatch(file, sizes)) is not None]
    if faults:
        return _criterion("hash", passed=False, why=faults[0])
    available = [file for file in measurement.files if file.available]
    unread = next((file for file in available if file.hash_why), None)
    if not available:
        return _criterion("hash", passed=None, hard=False, why="no file to compare")
    if unread is not None:
        return _criterion("hash", passed=None, why=f"{unread.need}: {unread.hash_why}")
    unsure = [file for file in available if file.listed == "name" and not file.hashed and _size(file, sizes) is None]
    if unsure:
        why = f"{unsure[0].need}: its page gives no hash, and no page gives the size"
        return _criterion("hash", passed=None, why=why)
    hashed = sum(file.hashed is not None for file in available)
    linked = sum(file.reached is not None and file.reached.linked == file.sha256 is not None for file in available)
    named = sum(file.listed == "name" and not file.hashed for file in available)
    sized = sum(_size(file, sizes) is not None and file.served_size is not None for file in available)
    counts = {"hashing the file": hashed, "name and size": named, "X-Linked-Etag": linked}
    counts["the page's hash"] = sum(f.listed == "hash" and not f.hashed for f in available) if not linked else 0
    ways = ", ".join(f"{number} by {way}" for way, number in counts.items() if number)
    return _criterion("hash", passed=True, why=f"{ways}; {sized} of {counted(len(available), 'size')} compared")


def _mismatch(file: FileStatus, sizes: Mapping[str, int]) -> str | None:
    reached, expected, size = file.reached, _size(file, sizes), file.served_size
    if reached is not None and expected is not None and size is not None and size != expected:
        return f"{file.need}: {reached.hosts[-1]} has {size} bytes, expected {expected}"
    linked = reached.linked or "" if reached is not None else ""
    served = file.hashed or (linked if _SHA256.fullmatch(linked) else None)
    if served is not None and file.sha256 not in {None, served}:
        return f"{file.need}: served with sha256 {served[:12]}..., expected {str(file.sha256)[:12]}..."
    return None


def _size(file: FileStatus, sizes: Mapping[str, int]) -> int | None:
    return file.size if file.size is not None else sizes.get(file.sha256 or "")


def _ranges(measurement: MirrorMeasurement) -> Criterion:
    if measurement.range_fault is not None:
        why = f"range in the middle of a file: {measurement.range_fault}"
        return _criterion("ranges", passed=False, why=why)
    served = [file.reached for file in measurement.files if file.available and file.reached]
    without = next((reached for reached in served if reached.total and not reached.ranged), None)
    if without is not None:
        why = f"{without.hosts[-1]} answers {without.status} to a range: no resume or split"
        return _criterion("ranges", passed=False, why=why)
    if not any(reached.total for reached in served):
        return _criterion("ranges", passed=None, hard=False, why="no file to request a range of")
    return _criterion("ranges", passed=True, why="206 with the right Content-Range")


def _stays(measurement: MirrorMeasurement, *, hard: bool) -> Criterion:
    available = [file.reached for file in measurement.files if file.available and file.reached is not None]
    foreign = sorted({host for reached in available for host in reached.hosts} - set(measurement.own))
    if foreign:
        served = sum(bool(set(reached.hosts) - set(measurement.own)) for reached in available)
        hosts = ", ".join(f"{host}{_host_kind(host)}" for host in foreign)
        why = f"{served} of {counted(len(available), 'file')} from {hosts}"
        return _criterion("stays", passed=False, hard=hard, why=why)
    if not available:
        return _criterion("stays", passed=None, hard=False, why="no file to follow")
    return _criterion("stays", passed=True, hard=hard, why="no request left the mirror's own hosts")


def _host_kind(host: str) -> str:
    """Return the kind of a host that serves models, or "" if its name does not show it."""
    name = host.partition(":")[0]
    if "xet" in name:
        return " (a xet host)"
    return " (the hub's own CDN)" if name.endswith((".hf.co", ".huggingface.co")) else ""


def _commit(measurement: MirrorMeasurement, pinned: str) -> Criterion:
    available = [(file, file.reached.commit) for file in measurement.files if file.available and file.reached]
    wrong = next(((file, commit) for file, commit in available if commit != pinned), None)
    if wrong is not None:
        missing = "no X-Repo-Commit, so huggingface_hub refuses the file"
        commit = f"X-Repo-Commit is {wrong[1][:12]}" if wrong[1] else missing
        return _criterion("commit", passed=False, why=f"{wrong[0].need}: {commit}")
    if not available:
        return _criterion("commit", passed=None, hard=False, why="no file to compare")
    return _criterion("commit", passed=True, why=f"{pinned[:12]} for every file")
