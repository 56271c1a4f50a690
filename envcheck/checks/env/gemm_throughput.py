"""A GPU that computes rightly and slowly sets the pace of every other one.

Pre-heated (a cold GPU scores higher), the L2 flushed and the output rewritten before each product, random data
(constants draw less power and run faster), timed by events, median taken: stas00/ml-engineering, compute/accelerator,
mamf-finder. TFLOP/s = 2 n^3 / t / 1e12. NVML's reasons go with it: a GPU that somebody caps owes what its cap leaves
it. Every product that was timed is verified afterwards, to the bit (support/exact_data.py).
"""

from __future__ import annotations

import time
from typing import Any

from envcheck.checks import PASS, Check, Limit, Measured, Outcome, Rank, Ranks, View, failed, undecided, worst
from envcheck.checks.env import fp8_training
from envcheck.checks.support import exact_data, gpu_speed, process_group, training
from envcheck.checks.support import sampler as hardware_sampler

CHECK = Check(
    promise="matrix products run at the speed this GPU model has in each dtype, where that is known",
    level="standard",
    seconds=11.0,
    timeout=180.0,
    gpus=1,
    ranks=0,
    performance=True,
    limits=("gemm-bfloat16", "gemm-float16", "gemm-tf32", "gemm-float32", "gemm-float8"),
)

SIZE = 8192
PREHEAT, INTERVAL = 5.0, 0.5
WARMUP, ITERATIONS = 5, 25
DTYPES = {
    "bfloat16": "gemm-bfloat16",
    "float16": "gemm-float16",
    "tf32": "gemm-tf32",
    "float32": "gemm-float32",
    "float8": "gemm-float8",
}
LIMIT = Limit(0, "products with wrong elements", "the same product of the same bits has the same bits", "at most")
_FIX = "look at clocks, power limit and temperature under load (`nvidia-smi -q -d PERFORMANCE,POWER`); compare slots"


def tflops(seconds: float) -> float:
    """Return the TFLOP/s of one product of SIZE^3 that took so long."""
    return 2 * SIZE**3 / seconds / 1e12


def measure(rank: Rank) -> Measured:
    """Multiply in every dtype the GPU has, all GPUs at once; return how fast, and what was wrong in the products."""
    import torch

    device = process_group.device_of(rank)
    capability = torch.cuda.get_device_capability(device)
    seed = exact_data.seed(rank.rank)
    data = exact_data.data(torch, SIZE, SIZE, device, seed)
    entry: Measured = {**process_group.standing(rank, data), "name": torch.cuda.get_device_name(device), "seed": seed}
    values, errors, products, lacking = {}, {}, {}, {}
    with hardware_sampler.Sampler(entry["device"], rank.local_rank, INTERVAL) as sampler:
        half, until = data.half(), time.monotonic() + PREHEAT
        while time.monotonic() < until:
            for _ in range(5):
                torch.mm(half, half)
            torch.cuda.synchronize()
    for dtype in DTYPES:
        why = _lacking(torch, dtype, device, capability)
        if why:
            lacking[dtype] = why
            continue
        took, made = _timed(torch, dtype, data)
        values[dtype], errors[dtype] = tflops(took), made.error
        products[dtype] = gpu_speed.verdict(made.wrong())
    measured = {"values": values, "errors": errors, "products": products, "unsupported": lacking}
    return {**entry, **measured, "load": sampler.measured()}


def _lacking(torch: Any, dtype: str, device: Any, capability: tuple[int, int]) -> str:
    if dtype == "float8":
        return fp8_training.lacking(torch, device, capability)
    return "not in this GPU" if dtype in ("bfloat16", "tf32") and capability < training.BFLOAT16_SINCE else ""


def _timed(torch: Any, dtype: str, data: Any) -> tuple[float, exact_data.Products]:
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    flush = torch.empty(gpu_speed.FLUSH, dtype=torch.int8, device=data.device)
    products, out = _products(torch, dtype, data)
    noise = data.to(out.dtype)

    def before() -> None:
        flush.zero_()
        out.copy_(noise)

    return gpu_speed.seconds(torch, products.work, before, WARMUP, ITERATIONS, products.verify), products


def _products(torch: Any, dtype: str, data: Any) -> tuple[exact_data.Products, Any]:
    """Return the products of the data by its transpose and by its mirrored transpose, and where they are written."""
    kind = {"tf32": "float32", "float8": "float8_e4m3fn"}.get(dtype, dtype)
    left, mirrored = (side.to(getattr(torch, kind)) for side in (data, data.flip(0).contiguous()))
    lines = (left, mirrored)
    if dtype == "float8":
        one = torch.ones((), device=data.device)

        def multiply(turn: int) -> Any:
            return fp8_training.multiply(torch, left, one, lines[turn], one)

        return exact_data.Products(torch, left, lines, multiply), data.to(torch.bfloat16)
    out = torch.empty_like(left)
    return exact_data.Products(torch, left, lines, lambda turn: torch.mm(left, lines[turn].t(), out=out)), out


@process_group.sound(backend=False)
def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail on a product that is no product; then judge each GPU's TFLOP/s by its model's limits."""
    speed = gpu_speed.judge(view, ranks, DTYPES, "TFLOP/s", _FIX)
    findings = [finding for entry in ranks for finding in _wrong(entry)]
    findings += [finding for entry in ranks for finding in gpu_speed.slows_down(entry, "gpu.slows-down")]
    return worst([*findings, *([speed] if speed.status != PASS else [])], otherwise=speed)


def _wrong(entry: Measured) -> list[Outcome]:
    findings = []
    for dtype in entry.get("values") or {}:
        findings += gpu_speed.no_product(entry, dtype, (entry.get("errors") or {}).get(dtype))
        made = (entry.get("products") or {}).get(dtype) or {}
        wrong, count, where = made.get("wrong"), made.get("messages"), process_group.name(entry)
        if not (process_group.counts(wrong) and process_group.counts(count) and count):
            summary = f"{where} verified no {dtype} product"
            findings.append(undecided(summary, code="data.missing", **gpu_speed.about(entry)))
        elif wrong:
            summary = f"{wrong} of {count} {dtype} products have wrong elements, first product {made.get('first')}"
            judged: dict[str, Any] = {"value": wrong, "limit": LIMIT, **gpu_speed.about(entry)}
            findings.append(failed(f"{where}: {summary}", fix=gpu_speed.WRONG_FIX, code="data.wrong", **judged))
    return findings
