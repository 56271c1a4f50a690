"""Rank mirrors by what was measured of them: gates that must be passed, then points, each with its numbers. Pure.

A gate that failed is never outweighed by speed. The points' weights and scales are this repository's choice, not a
measurement: the rate decides, the region is a prior that little depends on (RubyMetric/chsrc#289).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from envcheck.mirrors.probe.criteria import Gate, Peers, gates, passes, peers, total
from envcheck.mirrors.probe.measurements import Branch, Measured

WEIGHTS: Final[Mapping[str, float]] = {"region": 5, "protocol": 10, "throughput": 60, "latency": 20, "freshness": 5}
# Bytes a second that give no point, and all of them; seconds until a request that give all, and none.
SLOW, FAST = 1e5, 1e8
NEAR, FAR = 0.001, 1.0
# A page that is older than the newest one seen by this many seconds gives no point.
STALE: Final = 7 * 86400.0
# huggingface_hub refuses what is larger over plain HTTP (MAX_HTTP_DOWNLOAD_SIZE).
HUB_LARGEST: Final = 50_000_000_000
LEAVES: Final = "it comes after every mirror whose files are on its own hosts, whatever its points"


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the score. `value` is what was measured, in `unit`; None gives no points, and `why` says why."""

    name: str
    points: float
    of: float
    value: float | str | None
    unit: str
    why: str


class Ranked(msgspec.Struct, frozen=True, kw_only=True):
    """A mirror judged. `score` is of 100, and None where a gate is not passed."""

    mirror: str
    part: str
    passed: bool
    score: float | None
    gates: list[Gate]
    marks: list[Mark]
    notes: list[str]
    measured: Measured

    @property
    def only(self) -> set[str]:
        """Return the names of the hard gates that were not passed."""
        return {gate.name for gate in self.gates if gate.hard and not gate.passed}

    @property
    def leaves(self) -> bool:
        """Tell whether a mirror, which the clients' own default is not, sends who asks it elsewhere."""
        return not self.measured.origin and any(gate.name == "stays" and gate.passed is False for gate in self.gates)


def rank(all_measured: Sequence[Measured], *, must_stay: bool = False, here: str | None = None) -> list[Ranked]:
    """Return the mirrors, those that pass first, the best score first; ties as they were given.

    Who passes and sends clients to other hosts comes after all who do not, however fast those hosts are.
    """
    others = peers(all_measured)
    judged = [_judged(one, others, must_stay=must_stay, here=here) for one in all_measured]
    return sorted(judged, key=lambda one: (not one.passed, not one.measured.answered, one.leaves, -(one.score or 0.0)))


def _judged(one: Measured, others: Peers, *, must_stay: bool, here: str | None) -> Ranked:
    found = gates(one, others, must_stay=must_stay)
    passed = passes(found)
    given = marks(one, others, here)
    score = round(sum(mark.points for mark in given), 1) if passed else None
    judged = Ranked(
        mirror=one.mirror, part=one.part, passed=passed, score=score, gates=found, marks=given,
        notes=notes(one), measured=one,
    )  # fmt: skip
    if passed and judged.leaves:
        return msgspec.structs.replace(judged, notes=[*judged.notes, LEAVES])
    return judged


def marks(one: Measured, others: Peers, here: str | None) -> list[Mark]:
    """Return the parts of the score, whatever the gates say."""
    return [_region(one, here), _protocol(one), _throughput(one), _latency(one), _freshness(one, others)]


def _mark(name: str, share: float, value: float | str | None, unit: str, why: str) -> Mark:
    of = WEIGHTS[name]
    return Mark(name=name, points=round(of * min(1.0, max(0.0, share)), 1), of=of, value=value, unit=unit, why=why)


def _region(one: Measured, here: str | None) -> Mark:
    if here is None or one.region is None:
        what = "this machine's region (--region)" if here is None else "the mirror's region"
        return _mark("region", 0.0, one.region, "", f"{what} is not told")
    same = one.region == here
    return _mark("region", float(same), one.region, "", "in this region" if same else f"not in {here}")


def _protocol(one: Measured) -> Mark:
    seen = one.latency
    if seen is None:
        return _mark("protocol", 0.0, None, "", one.latency_why or "not measured")
    if seen.version is None:
        return _mark("protocol", 0.2, "http", "", "plain http")
    spoken = "HTTP/2" if seen.alpn == "h2" else "HTTP/1.1"
    share = (0.8 if seen.version == "TLSv1.3" else 0.6) + (0.2 if seen.alpn == "h2" else 0.0)
    return _mark("protocol", share, f"{seen.version} {spoken}", "", f"{spoken} over {seen.version}")


def _throughput(one: Measured) -> Mark:
    rate = one.rate
    if rate is None or rate.bytes == 0:
        return _mark("throughput", 0.0, None, "B/s", _unmeasured(one))
    share = math.log(max(rate.speed, 1.0) / SLOW) / math.log(FAST / SLOW)
    cut = f", then {rate.why}" if rate.why else ""
    why = f"{rate.bytes / 1e6:.2f} MB from the middle of a file in {rate.seconds:.2f} s{cut}"
    return _mark("throughput", share, rate.speed, "B/s", why)


def _unmeasured(one: Measured) -> str:
    stalled = f"nothing came: {one.rate.why or 'the range was empty'}" if one.rate is not None else None
    return stalled or one.rate_why or one.range_fault or "not measured"


def _latency(one: Measured) -> Mark:
    seen = one.latency
    if seen is None:
        return _mark("latency", 0.0, None, "s", one.latency_why or "not measured")
    share = math.log(FAR / max(seen.total, NEAR)) / math.log(FAR / NEAR)
    tls = f" + TLS {seen.tls * 1e3:.1f}" if seen.tls is not None else ""
    why = f"name {seen.dns * 1e3:.1f} + connection {seen.tcp * 1e3:.1f}{tls} ms, median of {seen.times}"
    return _mark("latency", share, seen.total, "s", why)


def _freshness(one: Measured, others: Peers) -> Mark:
    if one.commit is not None:
        return _behind(one.branch)
    serials = [page.serial for page in one.pages if page.serial is not None]
    if serials and others.serial is not None:
        lag = others.serial - max(serials)
        return _mark("freshness", float(lag == 0), lag, "serials", f"{lag} serials behind the newest page seen")
    dates = [page.modified for page in one.pages if page.modified is not None]
    if dates and others.modified is not None:
        lag_seconds = others.modified - max(dates)
        why = f"its newest page is {lag_seconds / 3600:.1f} h older than the newest one seen"
        return _mark("freshness", 1 - lag_seconds / STALE, lag_seconds, "s", why)
    return _mark("freshness", 0.0, None, "s", "its pages say neither serial nor date")


def _behind(branch: Branch | None) -> Mark:
    """Judge where a hub has a branch: what is asked for by name would be another commit there."""
    if branch is None:
        return _mark("freshness", 1.0, 0.0, "s", "a commit is asked for, which does not change")
    if branch.commit is None:
        return _mark("freshness", 0.0, None, "s", f"it does not tell where {branch.ref} is: {branch.why}")
    if branch.commit == branch.trusted:
        return _mark("freshness", 1.0, 0.0, "s", f"its {branch.ref} is where the trusted endpoint's is")
    share = 1 - branch.lag / STALE if branch.lag is not None and branch.lag > 0 else 0.0
    by = f"{branch.lag / 3600:.1f} h behind" if branch.lag is not None and branch.lag > 0 else "not at"
    return _mark("freshness", share, branch.lag, "s", f"its {branch.ref} is {by} the trusted endpoint's")


def notes(one: Measured) -> list[str]:
    """Return what is no gate and gives no points, but ought to be known."""
    large = [file.need for file in one.files if (total(file) or 0) > HUB_LARGEST]
    said = [f"{name} is over 50 GB: huggingface_hub refuses it without xet, envcheck does not" for name in large]
    if any(file.reached is not None and file.reached.xet for file in one.files):
        said.append("it offers xet, whose data plane ignores HF_ENDPOINT: keep HF_HUB_DISABLE_XET=1")
    branch = one.branch
    if branch is not None and branch.commit not in {None, branch.trusted}:
        where = f"{str(branch.commit)[:12]}, the trusted endpoint's at {branch.trusted[:12]}"
        said.append(f"its {branch.ref} is at {where}: by that name it gives another model")
    return said
