"""A GPU that is fast for ten seconds, and slow for the weeks after.

Products run on all GPUs for three minutes; once a second the speed is taken, every element of every product is compared
with the first one's (gpu-burn and DCGM's diagnostic do so too), and the GPU is asked for its state.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from envcheck import checks
from envcheck.checks import Measured, Outcome, Rank, Ranks, View, failed, passed, too_slow, undecided, warned, worst
from envcheck.checks.support import exact_data, gpu_speed, process_group, training
from envcheck.checks.support import sampler as hardware_sampler
from envcheck.counting import counted

CHECK = checks.Check(
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
# The clock of a cold GPU is higher than it can hold: the first sixth is no measure of anything.
WARM, WINDOWS = 6, 5
_FEWEST = 6
_OURS = "ours: a cold GPU is faster by its boost clock alone, which is under a quarter"
BEST = checks.Limit(0.6, "of its best second", _OURS, "at least")
BEST_ADVICE = checks.Limit(0.75, "of its best second", _OURS, "at least")


def measure(rank: Rank) -> Measured:
    """Multiply for SECONDS; say once a second how fast, how many elements had other bits, and what NVML saw."""
    import torch

    training.make(torch)
    device = process_group.device_of(rank)
    native = torch.cuda.get_device_capability(device) >= training.BFLOAT16_SINCE
    seed = exact_data.seed(rank.rank)
    data = exact_data.data(torch, SIZE, SIZE, device, seed).to(torch.bfloat16 if native else torch.float16)
    entry: Measured = {**process_group.standing(rank, data), "name": torch.cuda.get_device_name(device)}
    entry |= {"dtype": str(data.dtype)[6:], "seed": seed}
    with hardware_sampler.Sampler(entry["device"], rank.local_rank, INTERVAL) as sampler:
        error, points = _run(torch, data)
    return {**entry, "error": error, "points": points, "interval": INTERVAL, "load": sampler.measured()}


def _run(torch: Any, data: Any) -> tuple[float, list[Measured]]:
    """Multiply by two matrices alternately; return how far the first products are off, and what each second gave."""
    rights, out = (data, data.flip(0).contiguous()), torch.empty_like(data)
    lines = (rights[0].t(), rights[1].t())
    made = exact_data.Products(torch, data, lines, lambda turn: torch.mm(data, rights[turn], out=out))
    torch.cuda.synchronize()
    points: list[Measured] = []
    began, products = time.monotonic(), 1
    while (at := time.monotonic() - began) < SECONDS:
        took, wrong = _batch(torch, made, products)
        points.append({"at": round(at, 2), "tflops": 2 * SIZE**3 * products / took / 1e12, "wrong": wrong})
        products = max(1, round(products * BATCH / took))
    return made.error, points


def _batch(torch: Any, made: exact_data.Products, products: int) -> tuple[float, int]:
    """Return the seconds of so many products, and how many words are wrong: a pass over both, which is not timed."""
    marks, counted = [], []
    references = [reference.view(-1).view(torch.int64) for reference in made.references]
    for turn in range(products):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        made.turn = turn
        start.record()
        made.work()
        end.record()
        marks.append((start, end))
        counted.append(made.product.view(-1).view(torch.int64).ne(references[turn % 2]).sum())
    # A second opinion on the last one, by other operations.
    last = exact_data.compared(torch, made.product.view(-1), made.references[made.turn % 2].view(-1))
    torch.cuda.synchronize()
    took = sum(float(start.elapsed_time(end)) for start, end in marks) / 1000
    return took, max(sum(torch.stack(counted).tolist()), int(last))


@process_group.sound(backend=False)
def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail on other bits, on a GPU that slows itself down, and on speed lost under way; the worst GPU is named."""
    unmeasured = {entry["rank"]: finding for entry in ranks if (finding := _unmeasured(entry)) is not None}
    findings = [*unmeasured.values()]
    for entry in ranks:
        findings += gpu_speed.no_product(entry, str(entry.get("dtype")), entry.get("error"))
        findings += [*_wrong(entry), *gpu_speed.slows_down(entry, "gpu.slows-down", failed)]
    judged = [(*_kept(entry), entry) for entry in ranks if entry["rank"] not in unmeasured]
    findings += [finding for share, end, entry in judged if (finding := _lost(view, share, end, entry)) is not None]
    ends = [{**entry, "values": {"sustained": end}} for _, end, entry in judged]
    findings += gpu_speed.unblamed(findings, gpu_speed.behind(ends, ["sustained"], "TFLOP/s", gpu_speed.COOLING))
    return worst(findings, otherwise=findings[0]) if findings else _held(judged)


def _unmeasured(entry: Measured) -> process_group.Problem:
    points = entry.get("points") or []
    finite = all(process_group.finite(point.get(name)) for point in points for name in ("tflops", "at"))
    if len(points) < _FEWEST or not finite or min(point["tflops"] for point in points) <= 0:
        summary = f"rank {entry['rank']} measured no speed over time"
        return undecided(summary, code="speed.missing", culprit=process_group.name(entry))
    return gpu_speed.unseen(entry, float(points[-1]["at"]), float(entry.get("interval") or INTERVAL))


def _wrong(entry: Measured) -> list[Outcome]:
    point = next((point for point in entry.get("points") or [] if point.get("wrong") != 0), None)
    if point is None:
        return []
    at = f"{point['at']:.0f} s" if process_group.finite(point.get("at")) else "an unknown time"
    summary = f"{counted(point.get('wrong') or 0, 'word')} of products had other bits after {at} under load"
    limit = checks.Limit(0, "words", "deterministic products of the same bits have the same bits", "at most")
    judged: dict[str, Any] = {"value": point.get("wrong"), "limit": limit, **gpu_speed.about(entry)}
    fix = "take this GPU out: it computes wrongly when it works hard; `dcgmi diag -r 4` tests it alone"
    where = f"{process_group.name(entry)}: {summary}{gpu_speed.text(entry.get('load') or {})}"
    return [failed(where, fix=fix, code="data.wrong", **judged)]


def _kept(entry: Measured) -> tuple[float, float]:
    speeds = [float(point["tflops"]) for point in entry["points"]]
    warm = speeds[len(speeds) // WARM :]
    window = max(1, len(warm) // WINDOWS)
    end = statistics.median(warm[-window:])
    return end / statistics.median(warm[:window]), end


def _lost(view: View, share: float, end: float, entry: Measured) -> process_group.Problem:
    from envcheck.checks import limits

    load, best = entry["load"], sorted(float(point["tflops"]) for point in entry["points"])[-2]
    row = limits.find(f"gemm-{entry.get('dtype')}", gpu=entry.get("name"))
    owed, cap = gpu_speed.capped(view, entry)
    lost, warm = (limits.limit("sustained-gemm", bound) for bound in ("fail", "warn"))
    least = lost.value * owed
    floor = round(row["fail"] * least, 1) if row else 0.0
    below = checks.Limit(floor, "TFLOP/s", f"{row['source'] if row else ''}; times {least:.2f}")
    where = f"rank {entry['rank']} on {entry['device']}: {end:.4g} TFLOP/s at the end,"
    state = f"{gpu_speed.text(load)}{gpu_speed.caps(load)}"
    of_start, of_best = f"{share:.1%} of the start{state}", f"{best:.4g} in its best second{state}{cap}"
    rows: list[tuple[Any, str, float, float, checks.Limit]] = [
        (too_slow, of_start, share, round(share, 4), lost),
        (warned, of_start, share, round(share, 4), warm),
        (too_slow if row and limits.verified(row) else warned, of_best, end, end, below),
        (too_slow, of_best, end / best, round(end / best, 4), BEST),
        (warned, of_best, end / best, round(end / best, 4), BEST_ADVICE),
    ]
    for tell, words, actual, value, limit in rows:
        if actual < limit.value:
            common = {"value": value, "limit": limit, **gpu_speed.about(entry)}
            short: Outcome = tell(f"{where} {words}", fix=gpu_speed.COOLING, code="speed.falls", **common)
            return short
    return None


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
        limit=limit,
        tflops={str(entry["rank"]): end for _, end, entry in judged},
    )
