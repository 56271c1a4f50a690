"""Speeds measured on every GPU at once: timed by events, judged by the limits of the GPU's model, the culprit named."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Union

from envcheck.checks import ERROR, FAIL, WARN, Limit, Measured, Outcome, Ranks, View, failed, passed, undecided, warned
from envcheck.checks.env import _group, _load

MIB = 1 << 20
# Larger than any L2 (B200: 126 MB), so that what is timed reads from memory.
FLUSH = 256 * MIB
STRAGGLER = Limit(
    0.9,
    "of the best GPU",
    "huggingface/gpu-fryer calls a GPU 10 % below the node's best an outlier; 5 % apart is normal "
    "(stas00/ml-engineering, compute/accelerator)",
)
_HALF = 0.5
Judged = Union[Outcome, Limit, None]


def seconds(torch: Any, work: Callable[[], Any], before: Callable[[], Any], warmup: int, iterations: int) -> float:
    """Return the median seconds that `work` takes on its stream; `before` runs ahead of each, untimed."""
    marks = []
    for iteration in range(warmup + iterations):
        before()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        if iteration >= warmup:
            marks.append((start, end))
    torch.cuda.synchronize()
    return float(statistics.median(start.elapsed_time(end) for start, end in marks)) / 1000


def judge(view: View, ranks: Ranks, limits_of: Mapping[str, str], unit: str, fix: str) -> Outcome:
    """Judge each rank's `values` by the limits named for them; the worst is the outcome, and names its GPU.

    `limits_of` maps what every rank has to have measured to a check of limits.json; without a limit it is reported. A
    value that is no number, or above what the hardware can do, is an error.
    """
    for entry in ranks:
        values, lacking = entry.get("values") or {}, entry.get("unsupported") or {}
        missing = [name for name in limits_of if name not in lacking and not _positive(values.get(name))]
        if missing or not values:
            return undecided(
                f"rank {entry['rank']} measured no {', '.join(missing) or unit}", fix="see the check's log"
            )
    told = [
        _one(view, entry, name, limits_of[name], unit, fix)
        for entry in ranks
        for name in limits_of
        if name in entry["values"]
    ]
    bad = [outcome for outcome in told if isinstance(outcome, Outcome)]
    worst = sorted(bad, key=lambda outcome: (ERROR, FAIL, WARN).index(outcome.status))
    if worst:
        return worst[0]
    return behind(ranks, limits_of, unit, fix) or _passed(ranks, unit, [row for row in told if isinstance(row, Limit)])


def _positive(value: Any) -> bool:
    return _group.finite(value) and bool(value > 0)


def _one(view: View, entry: Measured, name: str, check: str, unit: str, fix: str) -> Judged:
    """Return what is wrong with one value, or the limit it met, or None where there is no limit for it."""
    from envcheck.checks import limits

    row, value = limits.find(check, gpu=entry.get("name")), float(entry["values"][name])
    where = f"rank {entry['rank']} ({entry.get('name')}, {entry['device']}), {name}: {value:.4g} {unit}"
    if row is None:
        return None
    details = {"rank": entry["rank"], "device": entry["device"], "values": entry["values"]}
    if value > row["ceiling"]:
        said = f"{where}: above the {row['ceiling']:g} that the hardware can do, so mismeasured"
        return undecided(said, fix="look for a clock or a tensor that is not what it seems; run it again", **details)
    floor, advice = (Limit(row[key], unit, row["source"], "at least") for key in ("fail", "warn"))
    if value >= advice.value:
        return floor
    share, cap = _cap(view, entry)
    cause = f"{_load.told(entry.get('load') or {})}{_load.slowed(entry.get('load') or {})}{cap}"
    if value >= floor.value * share:
        return warned(f"{where}: low{cause}", fix=fix, value=value, unit=unit, limit=advice, **details)
    return failed(f"{where}: slow{cause}", fix=fix, value=value, unit=unit, limit=_scaled(floor, share), **details)


def _scaled(floor: Limit, share: float) -> Limit:
    if share == 1:
        return floor
    why = f"{floor.source}; times {share:.2f} for the cap: speed falls as clocks do, and less than power does (ours)"
    return Limit(round(floor.value * share, 1), floor.unit, why, floor.kind)


def _cap(view: View, entry: Measured) -> tuple[float, str]:
    """Return which share of its speed is still owed by a GPU that somebody caps on purpose, and the words for it."""
    (power, limited), (clock, slowed) = _power_cap(view, entry["device"]), _clock_cap(entry.get("load") or {})
    return min(power, clock), limited + slowed


def _power_cap(view: View, device: str) -> tuple[float, str]:
    """Return the enforced share of the maker's power limit; below half of it nobody knows what is owed: 0."""
    for gpu in view.snapshot.gpus:
        limit, default = gpu.signal("power_limit").value, gpu.signal("power_limit_default").value
        if gpu.uuid == device and _group.finite(limit) and _group.finite(default) and 0 < limit < default:
            share = float(limit / default)
            said = f"; its power is capped at {limit:g} of {default:g} W"
            return (share if share >= _HALF else 0.0), said
    return 1.0, ""


def _clock_cap(load: Measured) -> tuple[float, str]:
    """Return the share of the highest clock at which somebody has set this GPU, where its own reasons say so."""
    clock, most = _load.spread(load, "clock"), _load.spread(load, "clock_max")
    if not _load.mostly(load, "applications clocks") or clock is None or most is None or not 0 < clock[1] < most[2]:
        return 1.0, ""
    return clock[1] / most[2], f"; its clock is set to {clock[1]:.0f} of {most[2]:.0f} MHz"


def behind(ranks: Ranks, names: Iterable[str], unit: str, fix: str) -> _group.Problem:
    """Return the warning naming the GPU that is furthest behind the best of its model, or None."""
    for name in names:
        measured = [(float(entry["values"][name]), entry) for entry in ranks if name in entry["values"]]
        for value, entry in sorted(measured, key=lambda pair: pair[0]):
            best = max(other for other, peer in measured if peer.get("name") == entry.get("name"))
            if value < best * STRAGGLER.value:
                where = f"rank {entry['rank']} ({entry['device']}), {name}"
                return warned(
                    f"{where}: {value:.4g} {unit}, where the best has {best:.4g}",
                    fix=fix,
                    value=round(value / best, 4),
                    unit=STRAGGLER.unit,
                    limit=STRAGGLER,
                    rank=entry["rank"],
                    device=entry["device"],
                )
    return None


def _passed(ranks: Ranks, unit: str, met: list[Limit]) -> Outcome:
    """Tell the slowest rank's value of everything; the first limit that was met stands for all."""
    names = [name for name in ranks[0]["values"] if all(name in entry["values"] for entry in ranks)]
    slowest = {name: min(float(entry["values"][name]) for entry in ranks) for name in names}
    told = ", ".join(f"{name} {value:.4g}" for name, value in slowest.items())
    models = " and ".join(sorted({str(entry.get("name")) for entry in ranks}))
    judged = "" if met else f": reported, not judged (no limit known for {models})"
    lacking = {name: why for entry in ranks for name, why in (entry.get("unsupported") or {}).items()}
    also = f"; not here: {', '.join(lacking)}" if lacking else ""
    return passed(
        f"slowest of {len(ranks)} GPU(s), {unit}: {told}{judged}{also}",
        value=slowest[names[0]],
        unit=unit,
        limit=met[0] if met else None,
        values={str(entry["rank"]): entry["values"] for entry in ranks},
        unsupported=lacking,
    )
