"""One slow rank is what every collective waits for.

Each rank times the same fixed work without waiting for anybody, and then when it joins one small all-reduce after the
other; medians count. On a CPU, which others use too, ranks that are apart repeat the rounds.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

from envcheck import checks
from envcheck.checks import Measured, Outcome, Rank, Ranks, View, failed, passed, too_slow, undecided, warned, worst
from envcheck.checks.support import control_group, exact_data, process_group

CHECK = checks.Check(
    promise="no rank takes longer than the others for the same work, nor comes late to collectives",
    level="standard",
    seconds=0.4,
    timeout=120.0,
    ranks=0,
    least_ranks=2,
    performance=True,
)

ROUNDS = {"cuda": 120, "cpu": 100}
# So many times the rounds are repeated at most, while the ranks are apart.
BLOCKS = {"cuda": 1, "cpu": 6}
SIZE = {"cuda": 4096, "cpu": 256}
# A round on a CPU ends within one time slice of the scheduler.
PRODUCTS = {"cuda": 2, "cpu": 1}
MEETINGS, NUMBERS = {"cuda": 200, "cpu": 60}, 64
# On a CPU that others use, the scheduler alone can hold a rank up for some time slices.
_BUSY = 5
ADVICE = checks.Limit(
    1.1,
    "of the fastest rank's time",
    "huggingface/gpu-fryer calls a GPU 10 % behind the best an outlier; 5 % apart is normal (stas00/ml-engineering)",
    "at most",
)
LIMIT = checks.Limit(1.25, ADVICE.unit, "ours: a quarter of the machine's time is spent waiting", "at most")
CPU_LIMIT = checks.Limit(
    2.0,
    ADVICE.unit,
    "ours: a core whose other thread serves another process, or a core of the slower kind, has half the speed",
    "at most",
)
LATE = checks.Limit(
    0.003,
    "s",
    "ours: a bucket of DDP's 25 MiB takes under 1 ms over NVLink (all-reduce rows of limits.json), 3 ms over PCIe",
    "at most",
)
_FIX = "look at this GPU's clocks, power and temperature under load, and at what else runs on its CPUs"
_LATE_FIX = "look at what this rank does between collectives (loggers, profilers, hooks), and at what runs on its CPUs"


def measure(rank: Rank) -> Measured:
    """Time the same products over and over, all ranks at once; then when this rank joins each of many all-reduces."""
    import torch

    device = process_group.device_of(rank)
    torch.set_num_threads(1)
    with process_group.group(rank) as dist:
        data = exact_data.data(torch, SIZE[device.type], SIZE[device.type], device, exact_data.seed(rank.rank))
        quotas = control_group.quotas()
        median, blocks = _products(torch, dist, data)
        joined, wrong = _meetings(torch, dist, rank, device)
        measured = {"products": {"median": median, "blocks": blocks}, "joined": joined, "wrong": wrong}
        measured["throttled"] = control_group.held(quotas)
        measured["model"] = torch.cuda.get_device_name(device) if data.is_cuda else ""
        return {**process_group.standing(rank, data, dist.get_backend()), **measured}


def _products(torch: Any, dist: Any, data: Any) -> tuple[float, int]:
    """Return the best median of a round's seconds, and how often the rounds were run: again while ranks are apart."""
    out, kind, medians = torch.empty_like(data), data.device.type, list[float]()
    _timed(torch, data, out)
    while len(medians) < BLOCKS[kind]:
        medians.append(statistics.median(_timed(torch, data, out) for _ in range(ROUNDS[kind])))
        # The largest of both is what the slowest and, negated, the fastest take.
        ends = torch.tensor([min(medians), -min(medians)], dtype=torch.float64, device=data.device)
        dist.all_reduce(ends, op=dist.ReduceOp.MAX)
        slowest, fastest = ends.tolist()
        if slowest <= ADVICE.value * -fastest:
            break
    return min(medians), len(medians)


def _timed(torch: Any, data: Any, out: Any) -> float:
    began = time.monotonic()
    for _ in range(PRODUCTS[data.device.type]):
        torch.mm(data, data, out=out)
    if data.is_cuda:
        torch.cuda.synchronize()
    return time.monotonic() - began


def _meetings(torch: Any, dist: Any, rank: Rank, device: Any) -> tuple[Measured, int]:
    """Return when this rank joined each all-reduce and what it took for that, and how many brought wrong sums."""
    at, own, wrong = [], [], 0
    tensor = torch.zeros(NUMBERS, dtype=torch.int64, device=device)
    dist.barrier()
    for number in range(MEETINGS[device.type]):
        began = time.monotonic()
        tensor.fill_(rank.rank + number)
        work = dist.all_reduce(tensor, async_op=True)
        at.append(time.monotonic())
        own.append(at[-1] - began)
        work.wait()
        wrong += tensor.tolist() != [sum(range(number, number + rank.world))] * NUMBERS
    return {"at": at, "own": statistics.median(own)}, wrong


@process_group.sound(alone="one rank cannot be slower than another")
def judge(view: View, ranks: Ranks) -> Outcome:
    """Name each rank behind the others, in computing and in joining them; on a shared CPU only warn."""
    findings = [_wrong(entry) for entry in ranks if process_group.positive(entry.get("wrong"))]
    unmeasured = [entry for entry in ranks if not _complete(entry, ranks[0])]
    if unmeasured:
        for entry in unmeasured:
            text = f"rank {entry['rank']} timed nothing"
            findings.append(undecided(text, code="speed.missing", culprit=_name(entry)))
        return worst(findings, otherwise=findings[0])
    held = _held(ranks)
    # GPUs compute without the CPUs that a quota takes away, but their ranks do not come in time.
    slow = _slow(view, ranks) if view.mode == "gpu" or not held else []
    findings += [*held, *slow, *([] if held else _late(view, ranks))]
    failing = {finding.culprit for finding in findings if finding.status == "fail"}
    once = [finding for finding in findings if finding.status != "warn" or finding.culprit not in failing]
    outcome = worst(once, otherwise=_together(view, ranks))
    return dataclasses.replace(outcome, details={**outcome.details, **_details(ranks)})


def _name(entry: Measured) -> str:
    return f"rank {entry['rank']} ({entry.get('device')} of {entry.get('host')})"


def _about(entry: Measured) -> dict[str, Any]:
    return {"culprit": _name(entry), "ranks": [entry["rank"]]}


def _wrong(entry: Measured) -> Outcome:
    summary = f"rank {entry['rank']}: {entry['wrong']} all-reduces brought a wrong sum"
    fix = "run the all-reduce and collectives checks, which say what arrived instead"
    return failed(summary, fix=fix, code="data.wrong", **_about(entry))


def _complete(entry: Measured, first: Measured) -> bool:
    at: list[Any] = (entry.get("joined") or {}).get("at") or []
    due = len((first.get("joined") or {}).get("at") or [])
    times = [(entry.get("products") or {}).get("median"), *at]
    told = process_group.counts(entry.get("wrong")) and all(map(process_group.positive, times))
    return told and bool(at) and len(at) == due


def _held(ranks: Ranks) -> list[Outcome]:
    """Return a warning where a CPU quota held the ranks back: all alike, so that none is behind the others."""
    throttled = [entry["throttled"] for entry in ranks if control_group.measured(entry.get("throttled"))]
    held: Measured = max(throttled, key=lambda one: float(one["share"]), default={})
    if not held or held["share"] <= control_group.HELD.value:
        return []
    text = f"{control_group.told(held)}, so that the ranks cannot be compared"
    about = {"value": held["share"], "limit": control_group.HELD, "culprit": "CPU quota"}
    return [warned(text, fix=control_group.FIX, code="straggler.throttled", **about)]


def ratios(ranks: Ranks) -> list[float]:
    """Return how many times as long each rank takes as the fastest one on its model of GPU: another may be slower."""
    times = [(entry.get("model"), float(entry["products"]["median"])) for entry in ranks]
    return [time / min(least for other, least in times if other == model) for model, time in times]


def _slow(view: View, ranks: Ranks) -> list[Outcome]:
    findings = []
    rows: list[tuple[Callable[..., Outcome], checks.Limit]] = [(too_slow, LIMIT), (warned, ADVICE)]
    for entry, ratio in zip(ranks, ratios(ranks)):
        # A CPU may have cores of two kinds, and others use it: no fault of this rank's.
        for tell, limit in rows if view.mode == "gpu" else [(warned, CPU_LIMIT)]:
            if ratio > limit.value:
                summary = f"{_name(entry)} takes {ratio:.2f} times as long as others"
                judged = {"value": round(ratio, 4), "limit": limit, **_about(entry)}
                findings.append(tell(summary, fix=_FIX, code="speed.behind", **judged))
                break
    return findings


def lateness(ranks: Ranks) -> dict[int, float]:
    """Return by how many seconds each rank joined after the first one of its host, in the median."""
    first = {
        host: [min(at) for at in zip(*(e["joined"]["at"] for e in ranks if e.get("host") == host))]
        for host in {entry.get("host") for entry in ranks}
    }
    return {
        entry["rank"]: statistics.median(
            at - least for at, least in zip(entry["joined"]["at"], first[entry.get("host")])
        )
        for entry in ranks
    }


def _late(view: View, ranks: Ranks) -> list[Outcome]:
    """Return a finding for each rank that joins late; on another host, whose clock differs, its own time counts."""
    findings, late = [], lateness(ranks)
    tell, least = (too_slow, LATE.value) if view.mode == "gpu" else (warned, LATE.value * _BUSY)
    usual = statistics.median_low(late.values())
    for entry in ranks:
        own, after = entry["joined"].get("own") or 0.0, late[entry["rank"]]
        for is_late, seconds, how in (
            (not own <= least, own, f"takes {own * 1000:.3g} ms for itself before it joins a collective"),
            (after > max(least, 3 * usual), after, f"joins collectives {after * 1000:.3g} ms after the first rank"),
        ):
            if is_late:
                judged = {"value": round(seconds, 5), "limit": LATE, **_about(entry)}
                findings.append(tell(f"{_name(entry)} {how}", fix=_LATE_FIX, code="speed.late", **judged))
    return findings


def _details(ranks: Ranks) -> Measured:
    medians = {str(entry["rank"]): entry["products"]["median"] for entry in ranks}
    middle = statistics.median(medians.values())
    return {
        "seconds": medians,
        "spread": round((max(medians.values()) - min(medians.values())) / middle, 4),
        "late": {str(rank): round(seconds, 6) for rank, seconds in lateness(ranks).items()},
    }


def _together(view: View, ranks: Ranks) -> Outcome:
    models = [entry.get("model") for entry in ranks]
    alone = [str(entry["rank"]) for entry in ranks if models.count(entry.get("model")) == 1]
    if len(alone) == len(ranks):
        return checks.skipped("no two ranks have GPUs of one model: speeds are not compared", code="straggler.unlike")
    slowest, ratio = max(zip(ranks, ratios(ranks)), key=lambda pair: pair[1])
    alike, rest = " on GPUs of one model" * (len(set(models)) > 1), f"; compared with none: rank {', '.join(alone)}"
    summary = f"{len(ranks) - len(alone)} ranks take the same time{alike}, within {ratio:.2f}; "
    summary += f"the slowest is {_name(slowest)}{rest * bool(alone)}"
    limit = LIMIT if view.mode == "gpu" else CPU_LIMIT
    return passed(summary, value=round(ratio, 4), limit=limit, ranks=[slowest["rank"]])
