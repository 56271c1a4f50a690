"""One link of many is slow, or a pair of GPUs takes the long way round: every ring goes through it.

Seen in the wild: an NVLink that trained at half its lanes, a bridge pushed in askew, a PCIe switch whose upstream port
all share. Each ordered pair is timed alone, so that links do not share; judged by what this model reaches over
NVSwitch where that is known, reported elsewhere. `details.matrix` holds GB/s (1e9) from row to column.
"""

from __future__ import annotations

import os
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
from envcheck.checks.env import _group, _peers, _speed

CHECK = Check(
    promise="each GPU writes to each other one as fast as this model and link do, where that is known",
    level="standard",
    seconds=5.0,
    timeout=120.0,
    gpus=2,
    performance=True,
)

SIZE = 512 * _speed.MIB
_FREE_SHARE = 0.25
WARMUP, ITERATIONS = 2, 5
_FIX = "look at the states and errors of this pair's NVLinks (nvidia-smi nvlink -s, -e), at ACS and at PCIe width"
Pair = dict[str, Any]


def measure(rank: Rank) -> Measured:
    """Time copies from each GPU to each other one that it can reach, one pair at a time: the median GB/s."""
    import torch

    if os.environ.get("NCCL_P2P_DISABLE") == "1":  # where the first transfer hangs, so would these
        return {**_group.standing(rank, torch.zeros(1, device=_group.device_of(rank))), "off": True}
    devices = _peers.devices(torch, rank)
    names = [_peers.name(torch, device, index) for index, device in enumerate(devices)]
    size = min(SIZE, *(int(torch.cuda.mem_get_info(device)[0] * _FREE_SHARE) for device in devices))
    buffers = [torch.randint(-128, 127, (size,), dtype=torch.int8, device=device) for device in devices]
    matrix: list[list[float | None]] = [[None] * len(devices) for _ in devices]
    for source, target in _peers.ordered(len(devices)):
        if _peers.unreachable(torch, devices[source], devices[target]) is None:
            _peers.doing(rank, f"{names[source]} -> {names[target]}")
            matrix[source][target] = size / _seconds(torch, buffers[source], buffers[target]) / 1e9
    models = [torch.cuda.get_device_name(device) for device in devices]
    return {**_group.standing(rank, buffers[0]), "gpus": names, "models": models, "bytes": size, "matrix": matrix}


def _seconds(torch: Any, source: Any, target: Any) -> float:
    # PyTorch copies between GPUs on the source's current stream: that is where the events have to be.
    with torch.cuda.device(source.device):
        return _speed.seconds(torch, lambda: target.copy_(source, non_blocking=True), lambda: None, WARMUP, ITERATIONS)


def judge(view: View, ranks: Ranks) -> Outcome:
    """Judge each pair's GB/s by its model's limit; the worst is the outcome, and names both GPUs."""
    found = _group.problem(view, ranks, backend=False)
    if found is not None:
        return found
    entry = ranks[0]
    if entry.get("off") is True:
        return skipped("not tried: NCCL_P2P_DISABLE=1 is set, by you or because peer-to-peer is broken")
    names, models, matrix = entry.get("gpus") or [], entry.get("models") or [], entry.get("matrix") or []
    if len(names) < 2 or len(models) != len(names) or [len(row) for row in matrix] != [len(names)] * len(names):  # noqa: PLR2004 (a pair)
        return undecided("the matrix of rates is not one of every pair", fix="see the check's log")
    pairs = [_pair(view, entry, *ends) for ends in _peers.ordered(len(names)) if matrix[ends[0]][ends[1]] is not None]
    if not pairs:
        return skipped("no GPU here can reach another: CUDA offers no peer access")
    bad = next((pair for pair in pairs if not (_group.finite(pair["rate"]) and pair["rate"] > 0)), None)
    if bad is not None:
        return undecided(f"{bad['where']}: {bad['rate']} GB/s is no rate", fix="see the check's log", matrix=matrix)
    worst = min(pairs, key=lambda pair: float(pair["rate"] / (pair["row"]["fail"] if pair["row"] else 1e-9)))
    return _above(pairs, matrix) or _judged(worst, pairs, matrix)


def _pair(view: View, entry: Measured, source: int, target: int) -> Pair:
    from envcheck.checks import limits

    names, models = entry["gpus"], entry["models"]
    ends = [_peers.uuid(names[source]), _peers.uuid(names[target])]
    link = _peers.link(view, *ends)
    alike = models[source] == models[target]
    row = limits.find("peer-bandwidth", gpu=models[source], transport=link) if alike else None
    if row is not None and _peers.links_up(view, *ends) < row["links"]:
        row = None  # 12 of 18 links is some clouds' design; check nvlink says so
    where = f"{names[source]} -> {names[target]}"
    return {"where": where, "ends": ends, "rate": entry["matrix"][source][target], "row": row, "link": link}


def _above(pairs: list[Pair], matrix: Any) -> Outcome | None:
    for pair in pairs:
        if pair["row"] and pair["rate"] > pair["row"]["ceiling"]:
            said = f"{pair['where']}: {pair['rate']:.4g} GB/s, above the {pair['row']['ceiling']:g} its links can carry"
            return undecided(f"{said}, so mismeasured", fix="run it again", matrix=matrix)
    return None


def _judged(worst: Pair, pairs: list[Pair], matrix: Any) -> Outcome:
    rates = [float(pair["rate"]) for pair in pairs]
    over = ", ".join(sorted({pair["link"] for pair in pairs} - {""}))
    slowest = min(pairs, key=lambda pair: float(pair["rate"]))
    extent = f"{len(pairs)} ordered pairs{f' over {over}' if over else ''}"
    row = worst["row"]
    if row is None:
        told = f"{extent}: {min(rates):.4g} to {max(rates):.4g} GB/s, slowest {slowest['where']}"
        return passed(f"{told}: reported, not judged (no limit known)", value=min(rates), unit="GB/s", matrix=matrix)
    floor, advice = (Limit(row[key], "GB/s", row["source"], "at least") for key in ("fail", "warn"))
    value, where = float(worst["rate"]), f"{worst['where']}: {worst['rate']:.4g} GB/s"
    judged: dict[str, Any] = {"value": value, "unit": "GB/s", "matrix": matrix}
    if value < floor.value:
        return failed(f"{where}: slow", fix=_FIX, limit=floor, gpus=worst["ends"], **judged)
    if value < advice.value:
        return warned(f"{where}: low", fix=_FIX, limit=advice, gpus=worst["ends"], **judged)
    return passed(f"{extent}: at least {min(rates):.4g} GB/s", limit=floor, **judged)
