"""A GPU that is fast for ten seconds, and slow for the weeks after.

Seen in the wild: thermal paste that has pumped out, a fan that spins up too late, a power feed that browns out with
eight boards at full draw, a core that computes wrongly only when hot. Products run on all GPUs at once for three
minutes; once a second the speed is taken, every element of every product is compared with the first one's (gpu-burn
and DCGM's diagnostic do so too), which plain Python and sums in float64 have verified, and the GPU is asked for clock,
power, temperature and its reasons for slowing down.
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
    too_slow,
    undecided,
    warned,
    worst,
)
from envcheck.checks.collectives import exact_numbers
from envcheck.checks.hardware import gpu_speed
from envcheck.checks.hardware import sampler as hardware_sampler
from envcheck.checks.support import process_group, seeded_numbers, verified_products
from envcheck.checks.training import deterministic_training
from envcheck.counting import counted

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
_OURS = "ours: a cold GPU is faster by its boost clock alone, which is under a quarter"
BEST = Limit(0.6, "of its best second", _OURS, "at least")
BEST_ADVICE = Limit(0.75, "of its best second", _OURS, "at least")
_FIX = (
    "look at fans, inlet air, power cables and supplies, and at this slot against the others (nvidia-smi -q -d POWER)"
)


def measure(rank: Rank) -> Measured:
    """Multiply for SECONDS; say once a second how fast, how many elements had other bits, and what NVML saw."""
    import torch

    deterministic_training.make(torch)
    device = process_group.device_of(rank)
    native = torch.cuda.get_device_capability(device) >= BFLOAT16_SINCE
    seed = seeded_numbers.seed(rank.rank)
    data = verified_products.data(torch, SIZE, SIZE, device, seed).to(torch.bfloat16 if native else torch.float16)
    entry = {
        **process_group.standing(rank, data),
        "name": torch.cuda.get_device_name(device),
        "dtype": str(data.dtype)[6:],
        "seed": seed,
    }
    with hardware_sampler.Sampler(entry["device"], rank.local_rank, INTERVAL) as sampler:
        error, points = _run(torch, data)
    return {**entry, "error": error, "points": points, "interval": INTERVAL, "load": sampler.measured()}


def _run(torch: Any, data: Any) -> tuple[float, list[Measured]]:
    """Multiply by one and by another matrix, alternately, so that a product that was not computed is seen.

    Returns how far the first products are off, and what was measured each second.
    """
    rights, out = (data, data.flip(0).contiguous()), torch.empty_like(data)
    lines = (rights[0].t(), rights[1].t())
    made = verified_products.Products(torch, data, lines, lambda turn: torch.mm(data, rights[turn], out=out))
    references = made.references
    torch.cuda.synchronize()
    points: list[Measured] = []
    began, products = time.monotonic(), 1
    while (at := time.monotonic() - began) < SECONDS:
        took, wrong = _batch(torch, (data, rights, out), references, products)
        # A second opinion on the last one, by other operations.
        last = int(exact_numbers.compared(torch, out.view(-1), references[(products - 1) % 2].view(-1)))
        wrong = max(wrong, last)
        points.append({"at": round(at, 2), "tflops": 2 * SIZE**3 * products / took / 1e12, "wrong": wrong})
        products = max(1, round(products * BATCH / took))
    return made.error, points


def _differing(torch: Any, product: Any, reference: Any) -> Any:
    """Return how many words of 64 bits differ: one pass over both, under a tenth of what the product itself takes.

    It reads 4 SIZE^2 bytes of 16-bit numbers, for 2 SIZE^3 operations: an H100 takes 0.1 ms at 2.8 TB/s beside 1.6 ms
    at 700 TFLOP/s, an L4 0.9 beside 9.
    """
    return product.view(-1).view(torch.int64).ne(reference.view(-1).view(torch.int64)).sum()


def _batch(torch: Any, matrices: Any, references: Any, products: int) -> tuple[float, int]:
    """Return the seconds that so many products take, and how many words of them are wrong, which is not timed."""
    data, rights, out = matrices
    marks, counted = [], []
    for turn in range(products):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        torch.mm(data, rights[turn % 2], out=out)
        end.record()
        marks.append((start, end))
        counted.append(_differing(torch, out, references[turn % 2]))
    torch.cuda.synchronize()
    took = sum(float(start.elapsed_time(end)) for start, end in marks) / 1000
    return took, sum(torch.stack(counted).tolist())


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail on other bits, on a GPU that slows itself down, and on speed lost under way; the worst GPU is named."""
    problem = process_group.problem(view, ranks, backend=False)
    if problem is not None:
        return problem
    unmeasured = {entry["rank"]: finding for entry in ranks if (finding := _unmeasured(entry)) is not None}
    findings = [*unmeasured.values()]
    findings += [f for e in ranks for f in (_off(e), _wrong(e), _throttled(e)) if f is not None]
    judged = [(*_kept(entry), entry) for entry in ranks if entry["rank"] not in unmeasured]
    lost = [
        finding
        for entry_shares in judged
        if (finding := _lost(*entry_shares) or _fallen(view, *entry_shares[1:])) is not None
    ]
    blamed = {finding.culprit for finding in (*findings, *lost)}
    findings += [*lost, *(finding for finding in _behind(judged) if finding.culprit not in blamed)]
    return worst(findings, otherwise=findings[0]) if findings else _held(judged)


def _unmeasured(entry: Measured) -> process_group.Problem:
    points = entry.get("points") or []
    sound = all(
        process_group.finite(p.get("tflops")) and p["tflops"] > 0 and process_group.finite(p.get("at")) for p in points
    )
    if len(points) < _FEWEST or not sound:
        summary = f"rank {entry['rank']} measured no speed over time"
        return undecided(summary, fix="see the check's log", code="speed.missing", culprit=gpu_speed.culprit(entry))
    return gpu_speed.unseen(entry, float(points[-1]["at"]), float(entry.get("interval") or INTERVAL))


def _off(entry: Measured) -> process_group.Problem:
    """Return the failure that the products with which all others are compared are none, or None."""
    error: Any = entry.get("error")
    if error is None:
        summary = f"rank {entry['rank']} compared no product with a reference"
        return undecided(summary, fix="see the check's log", code="data.missing", culprit=gpu_speed.culprit(entry))
    most = verified_products.TOLERANCE.get(str(entry.get("dtype")), 0.0)
    if process_group.finite(error) and 0 <= error <= most:
        return None
    return failed(
        f"rank {entry['rank']} on {entry['device']}: the {entry.get('dtype')} product is off by {error}",
        fix="run the kernels check on this GPU; wrong there too, take the GPU out",
        value=error if process_group.finite(error) else None,
        unit="relative error",
        code="data.wrong",
        culprit=gpu_speed.culprit(entry),
        rank=entry["rank"],
    )


def _wrong(entry: Measured) -> process_group.Problem:
    for point in entry.get("points") or []:
        if point.get("wrong") != 0:
            at = f"{point['at']:.0f} s" if process_group.finite(point.get("at")) else "an unknown time"
            summary = f"{counted(point.get('wrong') or 0, 'word')} of products had other bits after {at} under load"
            return failed(
                f"rank {entry['rank']} on {entry['device']}: {summary}{gpu_speed.text(entry.get('load') or {})}",
                fix="take this GPU out: it computes wrongly when it works hard; dcgmi diag -r 4 tests it alone",
                value=point.get("wrong"),
                unit="words",
                limit=Limit(0, "words", "deterministic products of the same bits have the same bits", "at most"),
                code="data.wrong",
                culprit=gpu_speed.culprit(entry),
                rank=entry["rank"],
                device=entry["device"],
            )
    return None


def _throttled(entry: Measured) -> process_group.Problem:
    load = entry.get("load") or {}
    faults = gpu_speed.faults(load)
    if not faults:
        return None
    summary = ", ".join(f"{name} in {count}" for name, count in faults.items())
    return failed(
        f"rank {entry['rank']} on {entry['device']}: {summary} of "
        f"{counted(len(load['samples']), 'sample')}{gpu_speed.text(load)}",
        fix=_FIX,
        value=sum(faults.values()),
        unit=gpu_speed.NO_FAULT.unit,
        limit=gpu_speed.NO_FAULT,
        code="gpu.slows-down",
        culprit=gpu_speed.culprit(entry),
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


def _lost(share: float, end: float, entry: Measured) -> process_group.Problem:
    from envcheck.checks import limits

    for bound, tell in (("fail", too_slow), ("warn", warned)):
        limit = limits.limit("sustained-gemm", bound)
        if share < limit.value:
            load = entry["load"]
            return tell(
                f"rank {entry['rank']} on {entry['device']}: {end:.4g} TFLOP/s at the end, {share:.1%} of the start"
                f"{gpu_speed.text(load)}{gpu_speed.caps(load)}",
                fix=_FIX,
                value=round(share, 4),
                unit=limit.unit,
                limit=limit,
                code="speed.falls",
                culprit=gpu_speed.culprit(entry),
                rank=entry["rank"],
                device=entry["device"],
            )
    return None


def _fallen(view: View, end: float, entry: Measured) -> process_group.Problem:
    """Return the finding that a GPU has lost too much of its best second, or is below its model's floor for minutes."""
    from envcheck.checks import limits

    load, best = entry["load"], sorted(float(point["tflops"]) for point in entry["points"])[-2]
    row = limits.find(f"gemm-{entry.get('dtype')}", gpu=entry.get("name"))
    share, cap = gpu_speed.capped(view, entry)
    least_speed = limits.limit("sustained-gemm", "fail").value * share
    floor = (
        Limit(round(row["fail"] * least_speed, 1), "TFLOP/s", f"{row['source']}; times {least_speed:.2f}")
        if row
        else None
    )
    summary = f"rank {entry['rank']} on {entry['device']}: {end:.4g} TFLOP/s at the end, {best:.4g} in its best second"
    summary += f"{gpu_speed.text(load)}{gpu_speed.caps(load)}{cap}"
    common: dict[str, Any] = {"fix": _FIX, "culprit": gpu_speed.culprit(entry)}
    common |= {"rank": entry["rank"], "device": entry["device"]}
    if floor and end < floor.value:
        return too_slow(summary, value=end, unit=floor.unit, limit=floor, code="speed.falls", **common)
    for limit, tell in ((BEST, too_slow), (BEST_ADVICE, warned)):
        if end < best * limit.value:
            value = round(end / best, 4)
            return tell(summary, value=value, unit=limit.unit, limit=limit, code="speed.falls", **common)
    return None


def _behind(judged: list[tuple[float, float, Measured]]) -> list[Outcome]:
    ranks = [{**entry, "values": {"sustained": end}} for _, end, entry in judged]
    return gpu_speed.behind(ranks, ["sustained"], "TFLOP/s", _FIX)


def _held(judged: list[tuple[float, float, Measured]]) -> Outcome:
    from envcheck.checks import limits

    share, end = min(row[0] for row in judged), min(row[1] for row in judged)
    limit = limits.limit("sustained-gemm", "fail")
    slowest = min(judged, key=lambda row: row[1])[2]
    silent = sorted({name for row in judged for name in row[2]["load"].get("not_offered") or {}})
    also = f"; not reported by this GPU: {', '.join(silent)}" if silent else ""
    return passed(
        f"{counted(len(judged), 'GPU')}, {slowest['dtype']}: {end:.4g} TFLOP/s at the end, {share:.1%} of the start"
        f"{gpu_speed.text(slowest['load'])}{gpu_speed.caps(slowest['load'])}{also}",
        value=round(share, 4),
        unit=limit.unit,
        limit=limit,
        tflops={str(entry["rank"]): end for _, end, entry in judged},
    )
