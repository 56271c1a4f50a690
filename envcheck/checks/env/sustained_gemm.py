"""A GPU that is fast for ten seconds, and slow for the weeks after.

Seen in the wild: thermal paste that has pumped out, a fan that spins up too late, a power feed that browns out with
eight boards at full draw, a core that computes wrongly only when hot. Products run on all GPUs at once for three
minutes; once a second the speed is taken, every bit of a product is compared with the first one's (gpu-burn and DCGM's
diagnostic do so too), and the GPU is asked for clock, power, temperature and its reasons for slowing down.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View, failed, passed, undecided, warned
from envcheck.checks.env import _deterministic, _group, _load, _nvml, _speed

CHECK = Check(
    promise="minutes of matrix products keep their speed and bits, and no GPU slows itself down for heat or power",
    level="full",
    seconds=190.0,
    timeout=480.0,
    gpus=1,
    ranks=0,
    performance=True,
)

SIZE = 8192
SECONDS, BATCH, INTERVAL = 180.0, 1.0, 1.0
BFLOAT16_SINCE = (8, 0)
# The clock of a cold GPU is higher than it can hold: the first sixth is no measure of anything.
WARM, WINDOWS = 6, 5
_FEWEST = 6
_FIX = (
    "look at fans, inlet air, power cables and supplies, and at this slot against the others (nvidia-smi -q -d POWER)"
)


def measure(rank: Rank) -> Measured:
    """Multiply for SECONDS; say once a second how fast, how many elements had other bits, and what NVML saw."""
    import torch

    _deterministic.make(torch)
    device = _group.device_of(rank)
    native = torch.cuda.get_device_capability(device) >= BFLOAT16_SINCE
    data = torch.randn(SIZE, SIZE, device=device).to(torch.bfloat16 if native else torch.float16)
    entry = {**_group.standing(rank, data), "name": torch.cuda.get_device_name(device), "dtype": str(data.dtype)[6:]}
    with _nvml.Sampler(entry["device"], rank.local_rank, INTERVAL) as sampler:
        points = _run(torch, data)
    return {**entry, "points": points, "interval": INTERVAL, "load": sampler.told()}


def _run(torch: Any, data: Any) -> list[Measured]:
    reference, out = torch.mm(data, data), torch.empty_like(data)
    torch.cuda.synchronize()
    points: list[Measured] = []
    began, products = time.monotonic(), 1
    while (at := time.monotonic() - began) < SECONDS:
        took = _batch(torch, data, out, products)
        wrong = int((out != reference).sum())
        points.append({"at": round(at, 2), "tflops": 2 * SIZE**3 * products / took / 1e12, "wrong": wrong})
        products = max(1, round(products * BATCH / took))
    return points


def _batch(torch: Any, data: Any, out: Any, products: int) -> float:
    """Return the seconds that so many products take."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(products):
        torch.mm(data, data, out=out)
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1000


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail on other bits, on a GPU that slows itself down, and on speed lost under way; the worst GPU is named."""
    found = _group.problem(view, ranks, backend=False)
    if found is not None:
        return found
    for entry in ranks:
        found = _unmeasured(entry) or _wrong(entry) or _throttled(entry)
        if found is not None:
            return found
    kept = [(*_kept(entry), entry) for entry in ranks]
    return _lost(kept) or _behind(kept) or _held(kept)


def _unmeasured(entry: Measured) -> _group.Problem:
    points = entry.get("points") or []
    sound = all(_group.finite(p.get("tflops")) and p["tflops"] > 0 and _group.finite(p.get("at")) for p in points)
    if len(points) < _FEWEST or not sound:
        return undecided(f"rank {entry['rank']} measured no speed over time", fix="see the check's log")
    return _load.unseen(entry, float(points[-1]["at"]), float(entry.get("interval") or INTERVAL))


def _wrong(entry: Measured) -> _group.Problem:
    for point in entry["points"]:
        if point.get("wrong") != 0:
            said = f"{point.get('wrong')} elements of a product had other bits after {point['at']:.0f} s under load"
            return failed(
                f"rank {entry['rank']} on {entry['device']}: {said}{_load.told(entry['load'])}",
                fix="take this GPU out: it computes wrongly when it works hard; dcgmi diag -r 4 tests it alone",
                value=point.get("wrong"),
                unit="elements",
                limit=Limit(0, "elements", "deterministic products of the same bits have the same bits", "at most"),
                rank=entry["rank"],
                device=entry["device"],
            )
    return None


def _throttled(entry: Measured) -> _group.Problem:
    seen, load = _load.faults(entry["load"]), entry["load"]
    if not seen:
        return None
    said = ", ".join(f"{name} in {count}" for name, count in seen.items())
    return failed(
        f"rank {entry['rank']} on {entry['device']}: {said} of {len(load['samples'])} samples{_load.told(load)}",
        fix=_FIX,
        value=sum(seen.values()),
        unit=_load.NO_FAULT.unit,
        limit=_load.NO_FAULT,
        rank=entry["rank"],
        device=entry["device"],
    )


def _kept(entry: Measured) -> tuple[float, float]:
    """Return the share of its speed that a GPU had at the end, and that speed in TFLOP/s."""
    speeds = [float(point["tflops"]) for point in entry["points"]]
    warm = speeds[len(speeds) // WARM :]
    window = max(1, len(warm) // WINDOWS)
    end = statistics.median(warm[-window:])
    return end / statistics.median(warm[:window]), end


def _lost(kept: list[tuple[float, float, Measured]]) -> _group.Problem:
    from envcheck.checks import limits

    share, end, entry = min(kept, key=lambda one: one[0])
    for bound, tell in (("fail", failed), ("warn", warned)):
        limit = limits.limit("sustained-gemm", bound)
        if share < limit.value:
            load = entry["load"]
            return tell(
                f"rank {entry['rank']} on {entry['device']}: {end:.4g} TFLOP/s at the end, {share:.1%} of the start"
                f"{_load.told(load)}{_load.caps(load)}",
                fix=_FIX,
                value=round(share, 4),
                unit=limit.unit,
                limit=limit,
                rank=entry["rank"],
                device=entry["device"],
            )
    return None


def _behind(kept: list[tuple[float, float, Measured]]) -> _group.Problem:
    ranks = [{**entry, "values": {"sustained": end}} for _, end, entry in kept]
    return _speed.behind(ranks, ["sustained"], "TFLOP/s", _FIX)


def _held(kept: list[tuple[float, float, Measured]]) -> Outcome:
    from envcheck.checks import limits

    share, end = min(one[0] for one in kept), min(one[1] for one in kept)
    limit = limits.limit("sustained-gemm", "fail")
    slowest = min(kept, key=lambda one: one[1])[2]
    silent = sorted({name for one in kept for name in one[2]["load"].get("not_offered") or {}})
    also = f"; not told by this GPU: {', '.join(silent)}" if silent else ""
    return passed(
        f"{len(kept)} GPU(s), {slowest['dtype']}: {end:.4g} TFLOP/s at the end, {share:.1%} of the start"
        f"{_load.told(slowest['load'])}{_load.caps(slowest['load'])}{also}",
        value=round(share, 4),
        unit=limit.unit,
        limit=limit,
        tflops={str(entry["rank"]): end for _, end, entry in kept},
    )
