"""Judge mirrors by what was measured, and rank them. Pure.

No speed outweighs a failed criterion, and a mirror that redirects to hosts of others comes after all that do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from envcheck.counting import counted


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

    `own` are the hosts that the profile names. `origin` marks the clients' own default, which may redirect to other
    hosts. `latency`: the seconds until the first answer. `range_fault` says why a range in the middle of a file failed.
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

    @property
    def answered(self) -> bool:
        """Tell whether any host answered."""
        return self.latency is not None


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


def rank(measurements: Iterable[MirrorMeasurement]) -> list[RankedMirror]:
    """Return the mirrors in order: those that pass first, then by rate; ties keep their order."""
    return sorted(map(judged, measurements), key=_order)


def _order(ranked: RankedMirror) -> tuple[bool, bool, bool, float]:
    measured = ranked.measured
    redirects = not measured.origin and any(one.name == "stays" and not one.passed for one in ranked.criteria)
    return not ranked.passed, not measured.answered, redirects, -(measured.rate.speed if measured.rate else 0.0)


def judged(measured: MirrorMeasurement) -> RankedMirror:
    """Return the mirror with every criterion that can be told, in the order in which failures are reported."""
    criteria = list(_criteria(measured))
    passed = all(criterion.passed for criterion in criteria if criterion.hard)
    return RankedMirror(mirror=measured.mirror, part=measured.part, passed=passed, criteria=criteria, measured=measured)


def _criteria(measured: MirrorMeasurement) -> Iterator[Criterion]:
    if measured.untrusted is not None:
        yield Criterion(name="tls", passed=False, why=measured.untrusted)
    elif measured.answered and measured.plain:
        why = "plain http: only the lock's hashes protect the bytes"
        yield Criterion(name="tls", passed=None, why=why, hard=False)
    elif measured.answered:
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
