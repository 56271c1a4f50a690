"""Rank mirrors by their measurements: criteria that must pass, then a score with the numbers behind it. Pure.

No speed outweighs a failed criterion. The weights and scales of the score are this repository's choice: the rate
counts most, the region is a prior of little weight (RubyMetric/chsrc#289).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from envcheck.mirrors.probe.criteria import Criterion, PeerFacts, all_pass, criteria_of, peer_facts, served_size
from envcheck.mirrors.probe.measurements import Branch, MirrorMeasurement

WEIGHTS: Final[Mapping[str, float]] = {"region": 5, "protocol": 10, "throughput": 60, "latency": 20, "freshness": 5}
# Bytes per second for no points and for all; seconds of latency for all points and for none.
SLOW, FAST = 1e5, 1e8
NEAR, FAR = 0.001, 1.0
# A page that is this many seconds older than the newest page gets no points.
STALE: Final = 7 * 86400.0
# huggingface_hub refuses larger files over plain HTTP (MAX_HTTP_DOWNLOAD_SIZE).
HUB_SIZE_LIMIT: Final = 50_000_000_000
REDIRECT_NOTE: Final = "ranked after all mirrors that serve the files from their own hosts, whatever its score"


class ScorePart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the score. `value` is the measured value in `unit`, or None (no points); `why` explains it."""

    name: str
    points: float
    of: float
    value: float | str | None
    unit: str
    why: str


class RankedMirror(msgspec.Struct, frozen=True, kw_only=True, rename={"criteria": "gates", "score_parts": "marks"}):
    """A ranked mirror. `score` is of 100, or None if a hard criterion is not passed."""

    mirror: str
    part: str
    passed: bool
    score: float | None
    criteria: list[Criterion]
    score_parts: list[ScorePart]
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


def rank(
    measurements: Sequence[MirrorMeasurement], *, no_redirects: bool = False, own_region: str | None = None
) -> list[RankedMirror]:
    """Return the mirrors in order: those that pass first, then by score; ties keep their order.

    A mirror that redirects to other hosts comes after all that do not, whatever its speed.
    """
    peers = peer_facts(measurements)
    ranked = [
        _rank_one(measurement, peers, no_redirects=no_redirects, own_region=own_region) for measurement in measurements
    ]
    return sorted(
        ranked,
        key=lambda mirror: (
            not mirror.passed,
            not mirror.measured.answered,
            mirror.redirects_out,
            -(mirror.score or 0.0),
        ),
    )


def _rank_one(
    measurement: MirrorMeasurement, peers: PeerFacts, *, no_redirects: bool, own_region: str | None
) -> RankedMirror:
    criteria = criteria_of(measurement, peers, no_redirects=no_redirects)
    passed = all_pass(criteria)
    parts = score_parts(measurement, peers, own_region)
    score = round(sum(part.points for part in parts), 1) if passed else None
    ranked = RankedMirror(
        mirror=measurement.mirror,
        part=measurement.part,
        passed=passed,
        score=score,
        criteria=criteria,
        score_parts=parts,
        notes=notes(measurement),
        measured=measurement,
    )
    if passed and ranked.redirects_out:
        return msgspec.structs.replace(ranked, notes=[*ranked.notes, REDIRECT_NOTE])
    return ranked


def score_parts(measurement: MirrorMeasurement, peers: PeerFacts, own_region: str | None) -> list[ScorePart]:
    """Return the parts of the score, whether or not the criteria pass."""
    return [
        _region(measurement, own_region),
        _protocol(measurement),
        _throughput(measurement),
        _latency(measurement),
        _freshness(measurement, peers),
    ]


def _score_part(name: str, share: float, value: float | str | None, unit: str, why: str) -> ScorePart:
    maximum = WEIGHTS[name]
    return ScorePart(
        name=name, points=round(maximum * min(1.0, max(0.0, share)), 1), of=maximum, value=value, unit=unit, why=why
    )


def _region(measurement: MirrorMeasurement, own_region: str | None) -> ScorePart:
    if own_region is None or measurement.region is None:
        unknown = "this machine's region (--region)" if own_region is None else "the mirror's region"
        return _score_part("region", 0.0, measurement.region, "", f"{unknown} is unknown")
    same = measurement.region == own_region
    return _score_part(
        "region", float(same), measurement.region, "", "in this region" if same else f"not in {own_region}"
    )


def _protocol(measurement: MirrorMeasurement) -> ScorePart:
    latency = measurement.latency
    if latency is None:
        return _score_part("protocol", 0.0, None, "", measurement.latency_why or "not measured")
    if latency.version is None:
        return _score_part("protocol", 0.2, "http", "", "plain http")
    protocol = "HTTP/2" if latency.alpn == "h2" else "HTTP/1.1"
    share = (0.8 if latency.version == "TLSv1.3" else 0.6) + (0.2 if latency.alpn == "h2" else 0.0)
    return _score_part("protocol", share, f"{latency.version} {protocol}", "", f"{protocol} over {latency.version}")


def _throughput(measurement: MirrorMeasurement) -> ScorePart:
    rate = measurement.rate
    if rate is None or rate.bytes == 0:
        return _score_part("throughput", 0.0, None, "B/s", _why_unmeasured(measurement))
    share = math.log(max(rate.speed, 1.0) / SLOW) / math.log(FAST / SLOW)
    interrupted = f", then {rate.why}" if rate.why else ""
    why = f"{rate.bytes / 1e6:.2f} MB from the middle of a file in {rate.seconds:.2f} s{interrupted}"
    return _score_part("throughput", share, rate.speed, "B/s", why)


def _why_unmeasured(measurement: MirrorMeasurement) -> str:
    stalled = (
        f"no bytes arrived: {measurement.rate.why or 'the range was empty'}" if measurement.rate is not None else None
    )
    return stalled or measurement.rate_why or measurement.range_fault or "not measured"


def _latency(measurement: MirrorMeasurement) -> ScorePart:
    latency = measurement.latency
    if latency is None:
        return _score_part("latency", 0.0, None, "s", measurement.latency_why or "not measured")
    share = math.log(FAR / max(latency.total, NEAR)) / math.log(FAR / NEAR)
    tls = f" + TLS {latency.tls * 1e3:.1f}" if latency.tls is not None else ""
    why = f"name {latency.dns * 1e3:.1f} + connection {latency.tcp * 1e3:.1f}{tls} ms, median of {latency.times}"
    return _score_part("latency", share, latency.total, "s", why)


def _freshness(measurement: MirrorMeasurement, peers: PeerFacts) -> ScorePart:
    if measurement.commit is not None:
        return _branch_freshness(measurement.branch)
    serials = [page.serial for page in measurement.pages if page.serial is not None]
    if serials and peers.serial is not None:
        lag = peers.serial - max(serials)
        return _score_part("freshness", float(lag == 0), lag, "serials", f"{lag} serials behind the newest page seen")
    dates = [page.modified for page in measurement.pages if page.modified is not None]
    if dates and peers.modified is not None:
        lag_seconds = peers.modified - max(dates)
        why = f"its newest page is {lag_seconds / 3600:.1f} h older than the newest one seen"
        return _score_part("freshness", 1 - lag_seconds / STALE, lag_seconds, "s", why)
    return _score_part("freshness", 0.0, None, "s", "its pages have neither a serial nor a date")


def _branch_freshness(branch: Branch | None) -> ScorePart:
    """Return the part for a branch: a hub that is behind serves another commit under the branch's name."""
    if branch is None:
        return _score_part("freshness", 1.0, 0.0, "s", "the request names a commit, which does not change")
    if branch.commit is None:
        return _score_part("freshness", 0.0, None, "s", f"the commit of {branch.ref} is unknown: {branch.why}")
    if branch.commit == branch.trusted:
        return _score_part("freshness", 1.0, 0.0, "s", f"its {branch.ref} is at the commit of the trusted endpoint")
    share = 1 - branch.lag / STALE if branch.lag is not None and branch.lag > 0 else 0.0
    by = f"{branch.lag / 3600:.1f} h behind" if branch.lag is not None and branch.lag > 0 else "not at"
    return _score_part("freshness", share, branch.lag, "s", f"its {branch.ref} is {by} the trusted endpoint's")


def notes(measurement: MirrorMeasurement) -> list[str]:
    """Return notes that affect neither the criteria nor the score."""
    large = [file.need for file in measurement.files if (served_size(file) or 0) > HUB_SIZE_LIMIT]
    texts = [f"{name} is over 50 GB: huggingface_hub refuses it without xet, envcheck does not" for name in large]
    if any(file.reached is not None and file.reached.xet for file in measurement.files):
        texts.append("it offers xet, which ignores HF_ENDPOINT: keep HF_HUB_DISABLE_XET=1")
    branch = measurement.branch
    if branch is not None and branch.commit not in {None, branch.trusted}:
        where = f"{str(branch.commit)[:12]}, the trusted endpoint's at {branch.trusted[:12]}"
        texts.append(f"its {branch.ref} is at {where}: it serves another model under that name")
    return texts
