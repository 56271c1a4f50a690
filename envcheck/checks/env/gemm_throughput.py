"""A GPU that computes rightly and slowly sets the pace of every other one.

Seen in the wild: a power or clock cap that somebody forgot, a card that throttles in the one slot without air, a BLAS
that falls back to a kernel without tensor cores. Pre-heated (a cold GPU scores higher), the L2 flushed and the output
rewritten before each product, random data (constants draw less power and run faster), timed by events, median taken:
stas00/ml-engineering, compute/accelerator, mamf-finder. TFLOP/s = 2 n^3 / t / 1e12. What NVML says while it heats up
goes with it: a GPU that somebody caps owes what its cap leaves it, and a slow one's own reason is named.
"""

from __future__ import annotations

import time
from typing import Any

from envcheck.checks import PASS, Check, Measured, Outcome, Rank, Ranks, View, failed, warned
from envcheck.checks.env import _fp8, _group, _load, _nvml, _speed

CHECK = Check(
    promise="matrix products run at the speed this GPU model has in each dtype, where that is known",
    level="standard",
    seconds=10.0,
    timeout=180.0,
    gpus=1,
    ranks=0,
    performance=True,
)

SIZE = 8192
PREHEAT, INTERVAL = 5.0, 0.5
WARMUP, ITERATIONS = 5, 25
BFLOAT16_SINCE = (8, 0)
# A corner of the product is compared, so that what was timed is known to be one. fp8 keeps three bits of mantissa.
CORNER = 32
TOLERANCE = {"float32": 1e-4, "tf32": 5e-3, "float16": 5e-3, "bfloat16": 2e-2, "float8": 2e-2}
DTYPES = {
    "bfloat16": "gemm-bfloat16",
    "float16": "gemm-float16",
    "tf32": "gemm-tf32",
    "float32": "gemm-float32",
    "float8": "gemm-float8",
}
_FIX = "look at clocks, power limit and temperature under load (nvidia-smi -q -d PERFORMANCE,POWER); compare slots"


def tflops(seconds: float) -> float:
    """Return the TFLOP/s of one product of SIZE^3 that took so long."""
    return 2 * SIZE**3 / seconds / 1e12


def measure(rank: Rank) -> Measured:
    """Multiply in every dtype the GPU has, all GPUs at once; say how fast, and how far off the product was."""
    import torch

    device = _group.device_of(rank)
    capability = torch.cuda.get_device_capability(device)
    data = torch.randn(SIZE, SIZE, device=device)
    entry: Measured = {**_group.standing(rank, data), "name": torch.cuda.get_device_name(device)}
    values, errors, lacking = {}, {}, {}
    with _nvml.Sampler(entry["device"], rank.local_rank, INTERVAL) as sampler:
        _preheat(torch, data.half())
    for dtype in DTYPES:
        why = _lacking(torch, dtype, device, capability)
        if why:
            lacking[dtype] = why
            continue
        took, errors[dtype] = _timed(torch, dtype, data)
        values[dtype] = tflops(took)
    return {**entry, "values": values, "errors": errors, "unsupported": lacking, "load": sampler.told()}


def _lacking(torch: Any, dtype: str, device: Any, capability: tuple[int, int]) -> str:
    if dtype == "float8":
        return _fp8.lacking(torch, device, capability)
    return "not in this GPU" if dtype in ("bfloat16", "tf32") and capability < BFLOAT16_SINCE else ""


def _preheat(torch: Any, data: Any) -> None:
    until = time.monotonic() + PREHEAT
    while time.monotonic() < until:
        for _ in range(5):
            torch.mm(data, data)
        torch.cuda.synchronize()


def _timed(torch: Any, dtype: str, data: Any) -> tuple[float, float]:
    """Return the median seconds of a product, and the relative error of a corner of it."""
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    flush = torch.empty(_speed.FLUSH, dtype=torch.int8, device=data.device)
    left, multiply, out, noise = _operands(torch, dtype, data)

    def before() -> None:
        flush.zero_()
        out.copy_(noise)

    took = _speed.seconds(torch, multiply, before, WARMUP, ITERATIONS)
    product = multiply()[:CORNER, :CORNER].cpu().double()
    # The right operand is the left one's transpose in every dtype.
    rows = left[:CORNER].float().cpu().double()
    expected = rows @ rows.T
    return took, float((product - expected).norm() / expected.norm())


def _operands(torch: Any, dtype: str, data: Any) -> tuple[Any, Any, Any, Any]:
    """Return the left operand, the product by its transpose as a call, its output, and noise of the output's kind."""
    if dtype == "float8":
        left, one = data.to(torch.float8_e4m3fn), torch.ones((), device=data.device)
        out = torch.empty(SIZE, SIZE, dtype=torch.bfloat16, device=data.device)

        return left, lambda: _fp8.multiply(torch, left, one, left, one), out, data.to(torch.bfloat16)
    left = data if dtype in ("float32", "tf32") else data.to(getattr(torch, dtype))
    out = torch.empty_like(left)
    return left, lambda: torch.mm(left, left.t(), out=out), out, left


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail on a product that is no product; then judge each GPU's TFLOP/s by its model's limits."""
    found = _group.problem(view, ranks, backend=False)
    if found is not None:
        return found
    for entry in ranks:
        for dtype in entry.get("values") or {}:
            error: Any = (entry.get("errors") or {}).get(dtype)
            if not _group.finite(error) or not 0 <= error <= TOLERANCE.get(dtype, 0):
                return failed(
                    f"rank {entry['rank']} on {entry['device']}: the {dtype} product is off by {error}",
                    fix="run the matmul check on this GPU; wrong there too, take the GPU out",
                    value=error if _group.finite(error) else None,
                    unit="relative error",
                    rank=entry["rank"],
                )
    outcome = _speed.judge(view, ranks, DTYPES, "TFLOP/s", _FIX)
    return (_faulty(ranks) if outcome.status == PASS else None) or outcome


def _faulty(ranks: Ranks) -> _group.Problem:
    """Return the warning naming a GPU that is fast enough still, and slows itself down for heat or power."""
    for entry in ranks:
        seen = _load.faults(entry.get("load") or {})
        if seen:
            return warned(
                f"rank {entry['rank']} ({entry['device']}): {', '.join(seen)}{_load.told(entry['load'])}",
                fix=_FIX,
                value=sum(seen.values()),
                unit=_load.NO_FAULT.unit,
                limit=_load.NO_FAULT,
                rank=entry["rank"],
            )
    return None
