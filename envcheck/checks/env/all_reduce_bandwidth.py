"""Links that are up and slow: training takes a third longer and nobody knows why.

Seen in the wild: NVLS off because the fabric manager is not running (365 instead of 480 GB/s on 8xH100), peer-to-peer
off in a virtual machine, one NVLink of eighteen down, a stale NCCL_P2P_DISABLE in somebody's profile. Judged by the
largest bus bandwidth of the curve, where data says what this GPU model, transport and count reach; reported elsewhere.

algbw = S / t, busbw = algbw * 2 (n - 1) / n, S in bytes, GB = 1e9 (NVIDIA/nccl-tests, doc/PERFORMANCE.md).
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
    promise="all-reduce completes at every size, and as fast as this GPU, link and count do where that is known",
    level="standard",
    seconds=5.0,
    timeout=240.0,
    ranks=0,
    performance=True,
)

MIB = 1 << 20
# A GPU needs 1 GB to reach its plateau; gloo on a CPU is only reported, and shown in a second.
SIZES = {"cuda": [MIB << shift for shift in (0, 2, 4, 6, 8, 10, 12)], "cpu": [MIB << shift for shift in (0, 2, 4, 6)]}
WARMUP, ITERATIONS = {"cuda": 5, "cpu": 1}, {"cuda": 20, "cpu": 4}
PLATEAU = 1_000_000_000
_FREE_SHARE = 0.25
_FIX = (
    "look at NCCL_DEBUG=INFO for the transport; check the fabric manager, NVLink states, and NCCL_* in the environment"
)


def busbw(size: float, seconds: float, ranks: int) -> float:
    """Return the bus bandwidth of an all-reduce of `size` bytes, in GB/s (1e9)."""
    return size / seconds * 2 * (ranks - 1) / ranks / 1e9


def measure(rank: Rank) -> Measured:
    """Time all-reduces over a curve of sizes: the median seconds of each, as this rank saw them."""
    import torch

    device = _group.device_of(rank)
    with _group.group(rank) as dist:
        curve = []
        for size in _sizes(torch, dist, device) if rank.world > 1 else []:
            tensor = torch.ones(size // 4, dtype=torch.float32, device=device)
            dist.all_reduce(tensor)
            right = bool(((tensor == rank.world).all()).item())
            seconds = _seconds(torch, dist, tensor.zero_())
            curve.append({"bytes": size, "seconds": seconds, "right": right})
            del tensor
        probe = torch.zeros(1, device=device)
        return {**_group.standing(rank, probe, dist.get_backend()), "curve": curve}


def _sizes(torch: Any, dist: Any, device: Any) -> list[int]:
    """Return the curve's sizes, the same on every rank: none above a quarter of the memory that the fullest GPU has."""
    if device.type != "cuda":
        return SIZES["cpu"]
    free = torch.tensor(torch.cuda.mem_get_info(device)[0], dtype=torch.int64, device=device)
    dist.all_reduce(free, op=dist.ReduceOp.MIN)
    return [size for size in SIZES["cuda"] if size <= int(free) * _FREE_SHARE]


def _seconds(torch: Any, dist: Any, tensor: Any) -> float:
    kind = tensor.device.type
    for _ in range(WARMUP[kind]):
        dist.all_reduce(tensor)
    dist.barrier()
    return statistics.median(_events(torch, dist, tensor) if kind == "cuda" else _clocked(dist, tensor))


def _events(torch: Any, dist: Any, tensor: Any) -> list[float]:
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(ITERATIONS["cuda"] + 1)]
    marks[0].record()
    for mark in marks[1:]:
        dist.all_reduce(tensor)
        mark.record()
    torch.cuda.synchronize()
    return [earlier.elapsed_time(later) / 1000 for earlier, later in zip(marks, marks[1:])]


def _clocked(dist: Any, tensor: Any) -> list[float]:
    times = []
    for _ in range(ITERATIONS["cpu"]):
        began = time.perf_counter()
        dist.all_reduce(tensor)
        times.append(time.perf_counter() - began)
    return times


def judge(view: View, ranks: Ranks) -> Outcome:
    """Judge the best bus bandwidth of the curve where a limit is known; above what the links can do is an error."""
    found = _group.problem(view, ranks)
    if found is not None:
        return found
    if len(ranks) == 1:
        return skipped("one rank has nobody to send to: its bus bandwidth is 0 by definition")
    curves = [entry.get("curve") or [] for entry in ranks]
    if not curves[0] or len({tuple(point["bytes"] for point in curve) for curve in curves}) != 1:
        return undecided("the ranks did not measure the same sizes", fix="see the check's log; free GPU memory")
    points = [_point(at, len(ranks)) for at in zip(*curves)]
    if not all(_group.finite(point["busbw"]) for point in points):
        return undecided("a time was zero or no number", fix="run it again; see the check's log", curve=points)
    wrong = [entry["rank"] for entry in ranks if not all(point.get("right") is True for point in entry["curve"])]
    if wrong:
        return failed(f"rank(s) {wrong}: the sum of ones is wrong", fix="run the all-reduce check", curve=points)
    best = max(points, key=lambda point: float(point["busbw"]))
    return _against_limit(view, ranks, points, best)


def _point(at: tuple[Measured, ...], ranks: int) -> Measured:
    """Return one size's bandwidth by the mean time over ranks, with the slowest rank beside it."""
    times = [point["seconds"] for point in at]
    if not all(_group.finite(seconds) and seconds > 0 for seconds in times):
        return {"bytes": at[0]["bytes"], "busbw": None}
    size, mean = at[0]["bytes"], statistics.fmean(times)
    return {
        "bytes": size,
        "algbw": size / mean / 1e9,
        "busbw": busbw(size, mean, ranks),
        "seconds": mean,
        "slowest_rank": times.index(max(times)),
        "slowest_seconds": max(times),
    }


def _against_limit(view: View, ranks: Ranks, points: list[Measured], best: Measured) -> Outcome:
    where = f"{len(ranks)} ranks over {ranks[0]['backend']}, best at {best['bytes'] // MIB} MiB"
    row, reason = _row(view, ranks)
    value = float(best["busbw"])
    judged: dict[str, Any] = {"value": value, "unit": "GB/s"}
    if row is None:
        return passed(f"busbw {value:.4g} GB/s, {where}: reported, not judged ({reason})", **judged, curve=points)
    floor, advice = (Limit(row[key], "GB/s", row["source"], "at least") for key in ("fail", "warn"))
    if value > row["ceiling"]:
        return undecided(
            f"busbw {value:.4g} GB/s, {where}: above the {row['ceiling']:g} GB/s its links can carry, so mismeasured",
            fix="look for a clock or a tensor that is not what it seems; run it again",
            curve=points,
        )
    if points[-1]["bytes"] < PLATEAU:
        return undecided("too little free GPU memory for sizes on the plateau", fix="free the GPUs", curve=points)
    if value < floor.value:
        return failed(f"busbw {value:.4g} GB/s, {where}: slow", fix=_FIX, **judged, limit=floor, curve=points)
    if value < advice.value:
        return warned(f"busbw {value:.4g} GB/s, {where}: low", fix=_FIX, **judged, limit=advice, curve=points)
    return passed(f"busbw {value:.4g} GB/s, {where}", **judged, limit=floor, curve=points)


def _row(view: View, ranks: Ranks) -> tuple[Measured | None, str]:
    """Return the limits for this GPU model, transport and count, or why there are none."""
    from envcheck.checks import limits

    if view.mode != "gpu":
        return None, "gloo on a CPU says nothing of GPUs"
    if len({entry.get("host") for entry in ranks}) > 1:
        return None, "no limit known between hosts"
    models = {str(gpu.signal("name").value) for gpu in view.snapshot.gpus}
    if len(models) != 1:
        return None, "no single GPU model is known"
    model, transport = models.pop(), _transport(view)
    row = limits.find("all-reduce-bandwidth", gpu=model, transport=transport, gpus=len(ranks))
    return row, f"no limit known for {len(ranks)} x {model} over {transport}"


def _transport(view: View) -> str:
    """Return pcie, nvlink, or nvswitch where NCCL may also reduce in the switch (NVLS), by what NVML shows."""
    links = [gpu.signal("nvlinks_active").value or 0 for gpu in view.snapshot.gpus]
    if not all(links):
        return "pcie"
    environment = view.snapshot.signal("env").value or {}
    return "nvlink" if str(environment.get("NCCL_NVLS_ENABLE")) == "0" else "nvls"
