"""One slow rank is what every collective waits for.

Seen in the wild: a GPU at idle clocks among seven at full, a rank whose CPU is shared with a monitoring agent, a card
that throttles in the slot without air. Each rank times the same fixed work without waiting for anybody; the shortest of
many rounds counts, so that what happens to pass by on the machine does not.
"""

from __future__ import annotations

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
    undecided,
    warned,
)
from envcheck.checks.env import _group

CHECK = Check(
    promise="no rank takes longer than the others for the same work",
    level="standard",
    seconds=1.0,
    timeout=120.0,
    ranks=0,
    least_ranks=2,
    performance=True,
)

ROUNDS = {"cuda": 60, "cpu": 1000}
SIZE = {"cuda": 4096, "cpu": 192}
# A round on a CPU ends within one time slice, so that other processes do not lengthen the shortest.
PRODUCTS = {"cuda": 4, "cpu": 1}
ADVICE = Limit(
    1.1,
    "of the fastest rank's time",
    "huggingface/gpu-fryer calls a GPU 10 % behind the best an outlier; 5 % apart is normal (stas00/ml-engineering)",
    "at most",
)
LIMIT = Limit(1.25, "of the fastest rank's time", "ours: a quarter of the machine's time is spent waiting", "at most")
_FIX = "look at this GPU's clocks, power and temperature under load, and at what else runs on its CPUs"


def measure(rank: Rank) -> Measured:
    """Time the same products over and over, all ranks at once; return the shortest round."""
    import torch

    device = _group.device_of(rank)
    torch.set_num_threads(1)
    with _group.group(rank) as dist:
        size = SIZE[device.type]
        data = torch.randn(size, size, device=device)
        times = [_round(torch, data) for _ in range(ROUNDS[device.type])]
        dist.all_reduce(torch.zeros(1, device=device))
        return {**_group.standing(rank, data, dist.get_backend()), "seconds": min(times)}


def _round(torch: Any, data: Any) -> float:
    began = time.perf_counter()
    for _ in range(PRODUCTS[data.device.type]):
        torch.mm(data, data)
    if data.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - began


def judge(view: View, ranks: Ranks) -> Outcome:
    """Name the rank furthest behind the fastest: fail on a GPU past the limit; on shared CPU cores warn at most."""
    found = _group.problem(view, ranks)
    if found is not None:
        return found
    if len(ranks) == 1:
        return skipped("one rank has nobody to be behind")
    for entry in ranks:
        if not _group.finite(entry.get("seconds")) or entry["seconds"] <= 0:
            return undecided(f"rank {entry['rank']} timed nothing", fix="see the check's log")
    return _compared(view, ranks)


def _compared(view: View, ranks: Ranks) -> Outcome:
    fastest, slowest = (pick(ranks, key=lambda entry: float(entry["seconds"])) for pick in (min, max))
    ratio = float(slowest["seconds"] / fastest["seconds"])
    where = f"rank {slowest['rank']} ({slowest.get('device')} of {slowest.get('host')})"
    middle = statistics.median(float(entry["seconds"]) for entry in ranks)
    details: dict[str, Any] = {
        "ranks": [slowest["rank"]],
        "seconds": {str(entry["rank"]): entry["seconds"] for entry in ranks},
        "over_middle": {str(entry["rank"]): round(entry["seconds"] / middle - 1, 4) for entry in ranks},
        "spread": round(float(slowest["seconds"] - fastest["seconds"]) / middle, 4),
    }
    judged: dict[str, Any] = {"value": round(ratio, 4), "unit": LIMIT.unit}
    if ratio > LIMIT.value:
        # A CPU may have cores of two kinds, which is no fault of anybody's.
        tell = failed if view.mode == "gpu" else warned
        return tell(f"{where} takes {ratio:.2f} times as long as others", fix=_FIX, **judged, limit=LIMIT, **details)
    if ratio > ADVICE.value and view.mode == "gpu":
        return warned(f"{where} takes {ratio:.2f} times as long as others", fix=_FIX, **judged, limit=ADVICE, **details)
    said = f"{len(ranks)} ranks take the same time, within {ratio:.2f}; the slowest is {where}"
    return passed(said, **judged, limit=LIMIT, **details)
