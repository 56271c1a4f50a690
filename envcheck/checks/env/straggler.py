"""One slow rank is what every collective waits for.

Seen in the wild: a GPU at idle clocks among seven at full, a rank whose CPU is shared with a monitoring agent, a card
that throttles in the slot without air, a rank that a logger holds up before each all-reduce. Each rank times the same
fixed work without waiting for anybody, and then when it joins one small all-reduce after the other. The median and the
95th percentile of its rounds count, and how long the rank itself slept (a voluntary context switch, getrusage(2)): that
shows a rank that waits for something of its own, however busy the machine is. On a CPU, which others use too, ranks
that are apart repeat the rounds: each one's best median counts. A rank that computes something else is no measure:
plain Python verifies the first products, and all others have to have their bits.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from typing import Any

from envcheck.checks import (
    Check,
    Limit,
    Measured,
    Outcome,
    Rank,
    Ranks,
    View,
    failed,
    passed,
    skipped,
    too_slow,
    undecided,
    warned,
    worst,
)
from envcheck.checks.collectives import timed_collectives
from envcheck.checks.support import process_group, seeded_numbers, timed_rounds, verified_products

CHECK = Check(
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
# A round that is longer by less is no matter; schedulers and clocks do as much.
_NOTABLE = 0.002
# On a CPU that others use, the scheduler alone can hold a rank up for some time slices.
_BUSY = 5
ADVICE = Limit(
    1.1,
    "of the fastest rank's time",
    "huggingface/gpu-fryer calls a GPU 10 % behind the best an outlier; 5 % apart is normal (stas00/ml-engineering)",
    "at most",
)
LIMIT = Limit(1.25, "of the fastest rank's time", "ours: a quarter of the machine's time is spent waiting", "at most")
CPU_LIMIT = Limit(
    2.0,
    LIMIT.unit,
    "ours: a core whose other thread serves another process, or a core of the slower kind, has half the speed",
    "at most",
)
LATE = Limit(
    0.003,
    "s",
    "ours: a bucket of DDP's 25 MiB takes under 1 ms over NVLink (all-reduce rows of limits.json), 3 ms over PCIe",
    "at most",
)
ASLEEP = Limit(0.25, "of a round's time", "ours: work that needs no one else does not sleep", "at most")
# Of float32, or of TF32, which a user's variable may switch on.
TOLERANCE = verified_products.TOLERANCE["tf32"]
_WRONG_FIX = "run the kernels and fingerprint checks on this rank's device; wrong there too, take it out"
_FIX = "look at this GPU's clocks, power and temperature under load, and at what else runs on its CPUs"
_LATE_FIX = "look at what this rank does between collectives (loggers, profilers, hooks), and at what runs on its CPUs"


def measure(rank: Rank) -> Measured:
    """Time the same products over and over, all ranks at once; then when this rank joins each of many all-reduces."""
    import torch

    device = process_group.device_of(rank)
    torch.set_num_threads(1)
    with process_group.group(rank) as dist:
        seed = seeded_numbers.seed(rank.rank)
        work = timed_rounds.Work(torch, device, SIZE[device.type], PRODUCTS[device.type], seed)
        products = _products(torch, dist, work)
        joined, wrong = _meetings(torch, dist, rank, device)
        measured = {"products": products, "joined": joined, "wrong": wrong, "computed": work.measured(), "seed": seed}
        return {**process_group.standing(rank, work.data, dist.get_backend()), **measured}


def _products(torch: Any, dist: Any, work: timed_rounds.Work) -> Measured:
    """Return how long rounds take. While ranks are apart they repeat them, and the best median of each counts."""
    blocks: list[list[tuple[float, float]]] = []
    data = work.data
    while len(blocks) < BLOCKS[data.device.type]:
        blocks.append([work.timed() for _ in range(ROUNDS[data.device.type])])
        least = min(statistics.median(seconds for seconds, _ in block) for block in blocks)
        # The largest of both is what the slowest and, negated, the fastest take.
        ends = torch.tensor([least, -least], dtype=torch.float64, device=data.device)
        dist.all_reduce(ends, op=dist.ReduceOp.MAX)
        slowest, fastest = ends.tolist()
        if slowest <= ADVICE.value * -fastest:
            break
    return {
        **timed_rounds.spread([seconds for block in blocks for seconds in block]),
        "median": least,
        "blocks": len(blocks),
    }


def _meetings(torch: Any, dist: Any, rank: Rank, device: Any) -> tuple[Measured, int]:
    """Return when this rank joined each all-reduce and how long it slept before, and how many brought wrong sums."""
    at, slept, busy, wrong = [], [], [], 0
    tensor = torch.zeros(NUMBERS, dtype=torch.int64, device=device)
    dist.barrier()
    for number in range(MEETINGS[device.type]):
        works: list[Any] = []

        def join(number: int = number, works: list[Any] = works) -> None:
            tensor.fill_(rank.rank + number)
            works.append(dist.all_reduce(tensor, async_op=True))

        began = time.thread_time()
        slept.append(timed_rounds.timed(join)[1])
        busy.append(time.thread_time() - began)
        at.append(time.monotonic())
        works[0].wait()
        wrong += tensor.tolist() != [sum(range(number, number + rank.world))] * NUMBERS
    return {"at": at, "slept": statistics.fmean(slept), "busy": statistics.median(busy)}, wrong


def judge(view: View, ranks: Ranks) -> Outcome:
    """Name each rank behind the others, in computing and in joining them; on a shared CPU fail only if it slept."""
    problem = process_group.problem(view, ranks)
    if problem is not None:
        return problem
    if len(ranks) == 1:
        return skipped("one rank cannot be slower than another", code="rank.not-enough")
    wrong, unmeasured = [*_wrong(ranks), *_miscomputed(ranks)], _unmeasured(ranks)
    if unmeasured:
        return worst([*wrong, *unmeasured], otherwise=unmeasured[0])
    findings = [*wrong, *_slow(view, ranks), *_late(view, ranks), *_asleep(view, ranks)]
    outcome = worst(_once(findings), otherwise=_together(view, ranks))
    return dataclasses.replace(outcome, details={**outcome.details, **_details(ranks)})


def _unmeasured(ranks: Ranks) -> list[Outcome]:
    findings = []
    for entry in ranks:
        products, joined = entry.get("products") or {}, entry.get("joined") or {}
        times: list[Any] = [products.get(name) for name in ("median", "p95", "shortest")]
        at = joined.get("at") or [None]
        slept: list[Any] = [products.get("slept"), joined.get("slept")]
        complete = all(process_group.finite(number) for number in (*times, *at, *slept)) and min(slept) >= 0
        # A clock that does not go back, read before each meeting (clock_gettime(2), CLOCK_MONOTONIC).
        complete = complete and at[0] > 0 and all(before <= after for before, after in zip(at, at[1:]))
        alike = len(at) == len((ranks[0].get("joined") or {}).get("at") or [])
        if not (complete and alike and min(times) > 0 and process_group.counts(entry.get("wrong"))):
            summary = f"rank {entry['rank']} timed nothing"
            findings.append(undecided(summary, fix="see the check's log", code="speed.missing", culprit=_name(entry)))
    return findings


def _wrong(ranks: Ranks) -> list[Outcome]:
    return [
        failed(
            f"rank {entry['rank']}: {entry['wrong']} all-reduces brought a wrong sum",
            fix="run the all-reduce and collectives checks, which say what arrived instead",
            code="data.wrong",
            culprit=_name(entry),
            ranks=[entry["rank"]],
        )
        for entry in ranks
        if process_group.counts(entry.get("wrong")) and entry["wrong"]
    ]


def _miscomputed(ranks: Ranks) -> list[Outcome]:
    """Return a finding for each rank whose timed products are none, or were not verified."""
    findings = []
    for entry in ranks:
        computed = entry.get("computed") or {}
        error: Any = computed.get("error")
        wrong, count = computed.get("wrong"), computed.get("products")
        common: dict[str, Any] = {"culprit": _name(entry), "ranks": [entry["rank"]]}
        if not (process_group.counts(wrong) and process_group.counts(count) and count):
            summary = f"rank {entry['rank']} verified none of its products"
            findings.append(undecided(summary, fix="see the check's log", code="data.missing", **common))
        elif not process_group.finite(error) or not 0 <= error <= TOLERANCE:
            summary = f"rank {entry['rank']}: the product that is timed is off by {error}"
            findings.append(failed(summary, fix=_WRONG_FIX, unit="relative error", code="data.wrong", **common))
        elif wrong:
            summary = f"rank {entry['rank']}: {wrong} of {count} products had other bits than the first"
            findings.append(failed(summary, fix=_WRONG_FIX, value=wrong, unit="products", code="data.wrong", **common))
    return findings


def _name(entry: Measured) -> str:
    return f"rank {entry['rank']} ({entry.get('device')} of {entry.get('host')})"


def _slow(view: View, ranks: Ranks) -> list[Outcome]:
    """Return a finding for each rank whose median round is behind the fastest, or whose late rounds stand out."""
    findings, limit = [], LIMIT if view.mode == "gpu" else CPU_LIMIT
    fastest = min(entry["products"]["median"] for entry in ranks)
    usual = statistics.median_low([entry["products"]["p95"] for entry in ranks])
    for entry in ranks:
        ratio, late = entry["products"]["median"] / fastest, entry["products"]["p95"]
        summary = f"{_name(entry)} takes {ratio:.2f} times as long as others"
        value: dict[str, Any] = {"value": round(ratio, 4), "unit": LIMIT.unit}
        code = "speed.behind"
        if view.mode == "gpu" and ratio <= ADVICE.value and late > LIMIT.value * usual and late - usual > _NOTABLE:
            summary = f"{_name(entry)} takes {late * 1000:.3g} ms in every twentieth round, where others take "
            summary, ratio = f"{summary}{usual * 1000:.3g} ms", late / usual
            value["value"], code = round(ratio, 4), "speed.late-rounds"
        common: dict[str, Any] = {**value, "culprit": _name(entry), "ranks": [entry["rank"]]}
        # A CPU may have cores of two kinds, and others use it: no fault of this rank's.
        if ratio > limit.value:
            tell = too_slow if view.mode == "gpu" else warned
            findings.append(tell(summary, fix=_FIX, limit=limit, code=code, **common))
        elif ratio > ADVICE.value and view.mode == "gpu":
            findings.append(warned(summary, fix=_FIX, limit=ADVICE, code=code, **common))
    return findings


def lateness(ranks: Ranks) -> dict[int, list[float]]:
    """Return by how many seconds each rank joined each all-reduce after the first one of its host."""
    first = {
        host: [min(at) for at in zip(*(e["joined"]["at"] for e in ranks if e.get("host") == host))]
        for host in {entry.get("host") for entry in ranks}
    }
    return {
        entry["rank"]: [at - least for at, least in zip(entry["joined"]["at"], first[entry.get("host")])]
        for entry in ranks
    }


def _late(view: View, ranks: Ranks) -> list[Outcome]:
    """Return a finding for each rank that is late, in the median or in every twentieth, where most are not."""
    findings, late, gpu = [], lateness(ranks), view.mode == "gpu"
    least = LATE.value if gpu else LATE.value * _BUSY
    often = (("speed.late", 0.5, "mostly"), ("speed.late-at-times", 0.95, "in every twentieth"))
    for code, share, how_often in often[: 2 if gpu else 1]:
        at = {rank: timed_collectives.percentile(seconds, share) for rank, seconds in late.items()}
        usual = statistics.median_low(at.values())
        for entry in ranks:
            late_by = at[entry["rank"]]
            if late_by <= least or late_by <= 3 * usual:
                continue
            tell = too_slow if gpu else warned
            summary = f"{_name(entry)} joins collectives {late_by * 1000:.3g} ms after the first rank, {how_often}"
            common: dict[str, Any] = {"culprit": _name(entry), "ranks": [entry["rank"]], "value": round(late_by, 5)}
            findings.append(tell(summary, fix=_LATE_FIX, unit="s", limit=LATE, code=code, **common))
    return findings


def _asleep(view: View, ranks: Ranks) -> list[Outcome]:
    """Return a failure for each rank that slept in its own work; a GPU's rank may sleep while it waits for its GPU."""
    findings = []
    for entry in ranks:
        common: dict[str, Any] = {"culprit": _name(entry), "ranks": [entry["rank"]]}
        share = entry["products"]["slept"] / entry["products"]["shortest"]
        if view.mode != "gpu" and share > ASLEEP.value:
            summary = f"{_name(entry)} sleeps in its products, {entry['products']['slept'] * 1000:.3g} ms a round"
            value = {"value": round(share, 4), "unit": ASLEEP.unit, "limit": ASLEEP}
            findings.append(too_slow(summary, fix=_LATE_FIX, code="speed.asleep", **value, **common))
        if entry["joined"]["slept"] > LATE.value:
            summary = f"{_name(entry)} sleeps {entry['joined']['slept'] * 1000:.3g} ms before it joins a collective"
            joined = {"value": round(entry["joined"]["slept"], 5), "unit": "s", "limit": LATE}
            findings.append(too_slow(summary, fix=_LATE_FIX, code="speed.asleep-before-joining", **joined, **common))
        busy = entry["joined"].get("busy", 0.0)
        if process_group.finite(busy) and busy > LATE.value:
            summary = f"{_name(entry)} computes for {busy * 1000:.3g} ms of its own before it joins a collective"
            joined = {"value": round(busy, 5), "unit": "s", "limit": LATE}
            findings.append(too_slow(summary, fix=_LATE_FIX, code="speed.busy-before-joining", **joined, **common))
    return findings


def _once(findings: list[Outcome]) -> list[Outcome]:
    """Return the findings without the warnings about a rank that has failed already."""
    failing = {finding.culprit for finding in findings if finding.status == "fail"}
    return [finding for finding in findings if finding.status != "warn" or finding.culprit not in failing]


def _details(ranks: Ranks) -> Measured:
    medians = {str(entry["rank"]): entry["products"]["median"] for entry in ranks}
    middle, late = statistics.median(medians.values()), lateness(ranks)
    return {
        "seconds": medians,
        "p95": {str(entry["rank"]): entry["products"]["p95"] for entry in ranks},
        "over_middle": {rank: round(seconds / middle - 1, 4) for rank, seconds in medians.items()},
        "spread": round((max(medians.values()) - min(medians.values())) / middle, 4),
        "late": {str(rank): round(statistics.median(seconds), 6) for rank, seconds in late.items()},
    }


def _together(view: View, ranks: Ranks) -> Outcome:
    fastest, slowest = (pick(ranks, key=lambda entry: float(entry["products"]["median"])) for pick in (min, max))
    ratio = float(slowest["products"]["median"] / fastest["products"]["median"])
    summary = f"{len(ranks)} ranks take the same time, within {ratio:.2f}; the slowest is {_name(slowest)}"
    limit = LIMIT if view.mode == "gpu" else CPU_LIMIT
    return passed(summary, value=round(ratio, 4), unit=limit.unit, limit=limit, ranks=[slowest["rank"]])
