"""Bandwidth curves of all ranks, judged: by the limits of the GPU's model, count and transport; else reported.

algbw = S / t; busbw = algbw * f, with f = 2 (n - 1) / n for an all-reduce, (n - 1) / n for all-gather, reduce-scatter
and all-to-all, 1 for broadcast and send/recv; GB = 1e9 (NVIDIA/nccl-tests, doc/PERFORMANCE.md).
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from envcheck.checks import PASS, Limit, Measured, Outcome, Ranks, View, failed, passed, undecided, warned, worst
from envcheck.checks.collectives import fabrics, transports
from envcheck.checks.support import process_group
from envcheck.counting import numbered

_Row = tuple[Optional[Measured], str]  # a row of limits.json, or why there is none

PLATEAU = 1_000_000_000
_FIX = (
    "look at the transport check; at the fabric manager, NVLink states, and NCCL_* in the environment and in nccl.conf"
)
LEAST = Limit(0.35, "of the links' rate", "ours: boards with NVSwitches reach 0.65 of it and more", "at least")
# Of all-to-all nobody has published what a sound board reaches.
SWITCHED = ("all-reduce", "all-gather", "reduce-scatter", "broadcast", "send/recv")
_AGAIN = "run it again; see the check's log"


def busbw(name: str, size: float, seconds: float, ranks: int) -> float:
    """Return the bus bandwidth of a collective on `size` bytes, in GB/s (1e9)."""
    factor = {"all-reduce": 2 * (ranks - 1) / ranks, "broadcast": 1.0, "send/recv": 1.0}
    return size / seconds * factor.get(name, (ranks - 1) / ranks) / 1e9


def judge(view: View, ranks: Ranks, owed: Sequence[str], rows: Mapping[str, str]) -> Outcome:
    """Judge the best bus bandwidth of each collective's curve; each one that falls short is a finding.

    Every rank holds `curves` by name, {bytes, seconds, right} each, and may hold `latency` and `nccl`. A collective
    that is `owed` may not be missing; what gloo says it does not have may be. `rows` names each one's in limits.json.
    """
    measured = ranks[0].get("curves") or {}
    names = [*measured, *(name for name in owed if name not in measured)]
    unlike = ", ".join(name for name in names if not _alike(ranks, name))
    wrong = [finding for name in names for finding in _wrong(ranks, name)]
    if unlike:
        fix = "see the check's log; free GPU memory"
        message = f"the ranks did not measure the same sizes of {unlike}"
        missing = undecided(message, fix=fix, code="speed.missing", culprit=unlike)
        return worst([*wrong, missing], otherwise=missing)
    curves = {name: points(ranks, name) for name in names}
    common: dict[str, Any] = {"curves": curves, "latency": latencies(ranks), "unsupported": ranks[0].get("unsupported")}
    untrue = [*wrong, *_no_times(curves, common["latency"])]
    outcome = worst(untrue, untrue[0]) if untrue else _against_limits(view, ranks, curves, common, rows)
    return dataclasses.replace(outcome, details={**outcome.details, **common})


def _alike(ranks: Ranks, name: str) -> bool:
    curves = [(entry.get("curves") or {}).get(name) or [] for entry in ranks]
    return bool(curves[0]) and len({tuple(point.get("bytes") for point in curve) for curve in curves}) == 1


def _no_times(curves: Mapping[str, list[Measured]], latencies: Mapping[str, list[Measured]]) -> list[Outcome]:
    times = {
        "time": [point["busbw"] for curve in curves.values() for point in curve],
        "latency": [at["p99"] for waits in latencies.values() for at in waits],
    }
    return [
        undecided(f"a {what} was zero or no number", fix=_AGAIN, code="speed.missing", culprit=what)
        for what, measured in times.items()
        if not all(map(process_group.finite, measured))
    ]


def _wrong(ranks: Ranks, name: str) -> list[Outcome]:
    points = {entry["rank"]: _points_of(entry, name) for entry in ranks}
    wrong = {rank: [point for point in points if point.get("right") is not True] for rank, points in points.items()}
    culprits = [rank for rank, points in wrong.items() if points]
    if not culprits:
        return []
    first = wrong[culprits[0]][0]
    extent = f": {first['wrong']} of {first['messages']} messages of {first['bytes']} B" if "messages" in first else ""
    summary = f"{numbered('rank', culprits)}: what {name} delivered is wrong{extent}"
    fix = "run the all-reduce and collectives checks, which say what arrived instead"
    told: dict[str, Any] = {"ranks": culprits, "wrong": {str(rank): points for rank, points in wrong.items() if points}}
    who = f"{name}, rank {', '.join(map(str, culprits))}"
    return [failed(summary, fix=fix, code="data.wrong", culprit=who, **told)]


def _points_of(entry: Measured, name: str) -> list[Measured]:
    latency = [point for point in (entry.get("latency") or {}).get(name) or [] if "right" in point]
    return [*latency, *((entry.get("curves") or {}).get(name) or [])]


def points(ranks: Ranks, name: str) -> list[Measured]:
    """Return the collective's curve: each size's bandwidth by the mean time over ranks, and each rank's seconds."""
    return [_point(name, at) for at in zip(*(entry["curves"][name] for entry in ranks))]


def _point(name: str, at: tuple[Measured, ...]) -> Measured:
    size: Any = at[0]["bytes"]
    times: list[Any] = [point.get("seconds") for point in at]
    if not all(map(process_group.positive, [size, *times])):
        return {"bytes": size, "busbw": None}
    mean = statistics.fmean(times)
    return {
        "bytes": size,
        "algbw": size / mean / 1e9,
        "busbw": busbw(name, size, mean, len(times)),
        "seconds": mean,
        "slowest_rank": times.index(max(times)),
        "rank_seconds": times,
    }


def latencies(ranks: Ranks) -> dict[str, list[Measured]]:
    """Return each collective's latency by size: the worst rank's p50 and p99 in s (None: no number), and that rank."""
    by_rank = [entry.get("latency") or {} for entry in ranks]
    names = [name for name in by_rank[0] if all(latency.get(name) for latency in by_rank)]
    return {name: [_latency(at) for at in zip(*(latency[name] for latency in by_rank))] for name in names}


def _latency(at: tuple[Measured, ...]) -> Measured:
    told: Any = ([point.get(name) for point in at] for name in ("p50", "p99"))
    middle, late = told
    if not all(map(process_group.positive, [at[0].get("bytes"), *middle, *late])):
        return {"bytes": at[0].get("bytes"), "p50": None, "p99": None}
    return {"bytes": at[0]["bytes"], "p50": max(middle), "p99": max(late), "slowest_rank": middle.index(max(middle))}


def _against_limits(
    view: View, ranks: Ranks, curves: Mapping[str, list[Measured]], common: dict[str, Any], rows: Mapping[str, str]
) -> Outcome:
    links = transports.of(view, ranks)
    common["transport"] = links.measured()
    rows_by_name = {name: _row(view, links, rows[name], ranks) for name in curves}
    judged = {
        name: _against_limit(links, name, curve, rows_by_name[name], len(ranks)) for name, curve in curves.items()
    }
    bad = [*fabrics.sockets(view, ranks), *(outcome for outcome in judged.values() if outcome.status != PASS)]
    fine = next(iter(judged.values()))
    if len(judged) > 1 and not bad:
        fine = _all_passed(ranks, links, judged, next(why for _, why in rows_by_name.values()))
    return worst(bad, otherwise=fine)


def _against_limit(links: transports.Links, name: str, curve: list[Measured], limit_row: _Row, ranks: int) -> Outcome:
    from envcheck.checks import limits

    best = max(curve, key=lambda point: float(point["busbw"]))
    value = float(best["busbw"])
    summary = f"{name} busbw {value:.4g} GB/s, {ranks} ranks over {links}, best at {best['bytes'] // (1 << 20)} MiB"
    row, why = limit_row
    ceiling = row["ceiling"] if row else links.ceiling(name)
    judged: dict[str, Any] = {"value": value, "unit": "GB/s"}
    if ceiling is not None and value > ceiling:
        fix = "look for a clock or a tensor that is not what it seems; run it again"
        too_fast = f"{summary}: above the {ceiling:.4g} GB/s its links can carry, so mismeasured"
        return undecided(too_fast, fix=fix, code="speed.impossible", culprit=name)
    if row is None:
        switched = "NVLS" in links.ways and name in SWITCHED and curve[-1]["bytes"] >= PLATEAU
        if switched and links.rate and value < LEAST.value * links.rate:
            slow = f"{summary}: slow for links of {links.rate:.4g} GB/s ({why})"
            return warned(slow, fix=_FIX, value=value, limit=LEAST, code="speed.unverified", culprit=name)
        return passed(f"{summary}: reported, not judged ({why})", **judged)
    if curve[-1]["bytes"] < PLATEAU:
        small = "too little free GPU memory for sizes on the plateau"
        return undecided(small, fix="free the GPUs", code="speed.no-plateau", culprit=name)
    short = limits.short(row, value, summary, fix=_FIX, culprit=name)
    return short or passed(summary, **judged, limit=Limit(row["fail"], "GB/s", row["source"], "at least"))


def _row(view: View, links: transports.Links, check: str, ranks: Ranks) -> _Row:
    from envcheck.checks import limits

    if view.mode != "gpu":
        return None, "gloo on a CPU says nothing of GPUs"
    if len({entry.get("host") for entry in ranks}) > 1:
        known = check == "all-reduce-bandwidth"
        return fabrics.between(view, ranks) if known else (None, "no limit known between hosts")
    models = {str(gpu.signal("name").value) for gpu in view.snapshot.gpus}
    if len(models) != 1:
        return None, "no single GPU model is known"
    model = models.pop()
    row = limits.find(check, gpu=model, transport=links.judged, gpus=len(ranks))
    return row, f"no limit known for {len(ranks)} x {model} over {links.judged}"


def _all_passed(ranks: Ranks, links: transports.Links, judged: Mapping[str, Outcome], why: str) -> Outcome:
    speeds = ", ".join(f"{name} {outcome.value:.4g}" for name, outcome in judged.items())
    met = next((outcome.limit for outcome in judged.values() if outcome.limit), None)
    reported = "" if met else f": reported, not judged ({why})"
    slowest = min(float(outcome.value) for outcome in judged.values())
    summary = f"best busbw in GB/s, {len(ranks)} ranks over {links}: {speeds}{reported}"
    return passed(summary, value=slowest, unit="GB/s", limit=met)
