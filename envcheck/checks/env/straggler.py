"""One slow rank is what every collective waits for.

A GPU at idle clocks among seven at full, a rank whose CPU is shared with a monitoring agent, a card that throttles in
the slot without air, a rank that a logger holds up before each all-reduce. Each rank times the same fixed work without
waiting for anybody, and then when it joins one small all-reduce after the other. The median and the 95th percentile of
its rounds count. On a CPU, which others use too, ranks that are apart repeat the rounds: each one's best median counts.
A rank that computes something else is no measure: plain Python verifies the first product, and all others have to have
its bits.
"""

from __future__ import annotations

import dataclasses
import math
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
from envcheck.checks.support import exact_data, process_group

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
# Of float32, or of TF32, which a user's variable may switch on.
TOLERANCE = exact_data.TOLERANCE["tf32"]
_LOG = "see the check's log"
_WRONG_FIX = "run the kernels and fingerprint checks on this rank's device; wrong there too, take it out"
_FIX = "look at this GPU's clocks, power and temperature under load, and at what else runs on its CPUs"
_LATE_FIX = "look at what this rank does between collectives (loggers, profilers, hooks), and at what runs on its CPUs"


def measure(rank: Rank) -> Measured:
    """Time the same products over and over, all ranks at once; then when this rank joins each of many all-reduces."""
    import torch

    device = process_group.device_of(rank)
    torch.set_num_threads(1)
    with process_group.group(rank) as dist:
        seed = exact_data.seed(rank.rank)
        work = Work(torch, device, SIZE[device.type], PRODUCTS[device.type], seed)
        products = _products(torch, dist, work)
        joined, wrong = _meetings(torch, dist, rank, device)
        measured = {"products": products, "joined": joined, "wrong": wrong, "computed": work.measured(), "seed": seed}
        return {**process_group.standing(rank, work.data, dist.get_backend()), **measured}


class Work:
    """So many products of one matrix by itself: the work of a round, verified outside what is timed."""

    def __init__(self, torch: Any, device: Any, size: int, products: int, seed: int) -> None:
        self.torch = torch
        self.data = exact_data.data(torch, size, size, device, seed)
        self.outs = [torch.empty_like(self.data) for _ in range(products)]
        self._do()
        self.reference = self.outs[0].clone()
        self.error = exact_data.error(torch, self.data, self.data.t(), self.reference)
        self.counted: list[Any] = []

    def timed(self) -> float:
        """Return how long a round took; its products have to be there afterwards."""
        for out in self.outs:
            out.fill_(math.nan)
        self._wait()
        began = time.monotonic()
        self._do()
        took = time.monotonic() - began
        self.counted += [exact_data.compared(self.torch, o.view(-1), self.reference.view(-1)) for o in self.outs]
        return took

    def measured(self) -> Measured:
        """Return how far the first product is off, and how many of the timed ones had other bits than it."""
        wrong = [int(count) for count in self.counted]
        return {"error": self.error, "products": len(wrong), "wrong": sum(count > 0 for count in wrong)}

    def _do(self) -> None:
        for out in self.outs:
            self.torch.mm(self.data, self.data, out=out)
        self._wait()

    def _wait(self) -> None:
        if self.data.is_cuda:
            self.torch.cuda.synchronize()


def _products(torch: Any, dist: Any, work: Work) -> Measured:
    """Return how long rounds take. While ranks are apart they repeat them, and the best median of each counts."""
    blocks: list[list[float]] = []
    data = work.data
    while len(blocks) < BLOCKS[data.device.type]:
        blocks.append([work.timed() for _ in range(ROUNDS[data.device.type])])
        least = min(map(statistics.median, blocks))
        # The largest of both is what the slowest and, negated, the fastest take.
        ends = torch.tensor([least, -least], dtype=torch.float64, device=data.device)
        dist.all_reduce(ends, op=dist.ReduceOp.MAX)
        slowest, fastest = ends.tolist()
        if slowest <= ADVICE.value * -fastest:
            break
    p95 = timed_collectives.percentile([seconds for block in blocks for seconds in block], 0.95)
    return {"median": least, "p95": p95, "blocks": len(blocks)}


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


def judge(view: View, ranks: Ranks) -> Outcome:
    """Name each rank behind the others, in computing and in joining them; on a shared CPU only warn."""
    problem = process_group.problem(view, ranks)
    if problem is not None:
        return problem
    if len(ranks) == 1:
        return skipped("one rank cannot be slower than another", code="rank.not-enough")
    findings = [finding for entry in ranks for finding in _computed(entry)]
    unmeasured = [entry for entry in ranks if not _complete(entry, ranks[0])]
    if unmeasured:
        nothing = [_nothing(f"rank {entry['rank']} timed nothing", entry) for entry in unmeasured]
        return worst([*findings, *nothing], otherwise=nothing[0])
    findings += [*_slow(view, ranks), *_late(view, ranks)]
    failing = {finding.culprit for finding in findings if finding.status == "fail"}
    once = [finding for finding in findings if finding.status != "warn" or finding.culprit not in failing]
    outcome = worst(once, otherwise=_together(view, ranks))
    return dataclasses.replace(outcome, details={**outcome.details, **_details(ranks)})


def _name(entry: Measured) -> str:
    return f"rank {entry['rank']} ({entry.get('device')} of {entry.get('host')})"


def _nothing(summary: str, entry: Measured) -> Outcome:
    return undecided(summary, fix=_LOG, code="speed.missing", culprit=_name(entry))


def _complete(entry: Measured, first: Measured) -> bool:
    products = entry.get("products") or {}
    times: list[Any] = [products.get("median"), products.get("p95")]
    at: list[Any] = (entry.get("joined") or {}).get("at") or []
    if not at or len(at) != len((first.get("joined") or {}).get("at") or []):
        return False
    finite = all(map(process_group.finite, (*times, *at))) and process_group.counts(entry.get("wrong"))
    # A clock that does not go back, read before each meeting (clock_gettime(2), CLOCK_MONOTONIC).
    return bool(finite and min(times) > 0 and at[0] > 0 and all(one <= other for one, other in zip(at, at[1:])))


def _computed(entry: Measured) -> list[Outcome]:
    """Return a finding for wrong sums, and for timed products that are none or were not verified."""
    who, computed = f"rank {entry['rank']}", entry.get("computed") or {}
    error: Any = computed.get("error")
    wrong, count = computed.get("wrong"), computed.get("products")
    about: dict[str, Any] = {"culprit": _name(entry), "ranks": [entry["rank"]]}
    findings = []
    if process_group.counts(entry.get("wrong")) and entry["wrong"]:
        summary = f"{who}: {entry['wrong']} all-reduces brought a wrong sum"
        fix = "run the all-reduce and collectives checks, which say what arrived instead"
        findings.append(failed(summary, fix=fix, code="data.wrong", **about))
    if not (process_group.counts(wrong) and process_group.counts(count) and count):
        findings.append(undecided(f"{who} verified none of its products", fix=_LOG, code="data.missing", **about))
    elif not process_group.finite(error) or not 0 <= error <= TOLERANCE:
        summary = f"{who}: the product that is timed is off by {error}"
        findings.append(failed(summary, fix=_WRONG_FIX, unit="relative error", code="data.wrong", **about))
    elif wrong:
        summary = f"{who}: {wrong} of {count} products had other bits than the first"
        findings.append(failed(summary, fix=_WRONG_FIX, value=wrong, unit="products", code="data.wrong", **about))
    return findings


def _slow(view: View, ranks: Ranks) -> list[Outcome]:
    """Return a finding for each rank whose median round is behind the fastest, or whose late rounds stand out."""
    findings, gpu = [], view.mode == "gpu"
    limit = LIMIT if gpu else CPU_LIMIT
    fastest = min(entry["products"]["median"] for entry in ranks)
    usual = statistics.median_low([entry["products"]["p95"] for entry in ranks])
    for entry in ranks:
        ratio, late = entry["products"]["median"] / fastest, entry["products"]["p95"]
        summary, code = f"{_name(entry)} takes {ratio:.2f} times as long as others", "speed.behind"
        if gpu and ratio <= ADVICE.value and late > LIMIT.value * usual and late - usual > _NOTABLE:
            twentieth = f"takes {late * 1000:.3g} ms in every twentieth round"
            summary = f"{_name(entry)} {twentieth}, where others take {usual * 1000:.3g} ms"
            ratio, code = late / usual, "speed.late-rounds"
        common: dict[str, Any] = {"value": round(ratio, 4), "unit": LIMIT.unit, "culprit": _name(entry)}
        common["ranks"] = [entry["rank"]]
        # A CPU may have cores of two kinds, and others use it: no fault of this rank's.
        if ratio > limit.value:
            tell = too_slow if gpu else warned
            findings.append(tell(summary, fix=_FIX, limit=limit, code=code, **common))
        elif ratio > ADVICE.value and gpu:
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
    """Return a finding for each rank that is late, in the median or in every twentieth, where most are not.

    Ranks of other hosts have other clocks: there the time counts that a rank takes for itself before it joins.
    """
    findings, late, gpu = [], lateness(ranks), view.mode == "gpu"
    least = LATE.value if gpu else LATE.value * _BUSY
    for entry in ranks:
        own = entry["joined"].get("own", 0.0)
        if not process_group.finite(own) or own > least:
            summary = f"{_name(entry)} takes {own * 1000:.3g} ms for itself before it joins a collective"
            told: dict[str, Any] = {"culprit": _name(entry), "ranks": [entry["rank"]], "value": round(own, 5)}
            tell = too_slow if gpu else warned
            findings.append(tell(summary, fix=_LATE_FIX, unit="s", limit=LATE, code="speed.late", **told))
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
