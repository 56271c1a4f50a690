"""A GPU that multiplies wrongly keeps its clocks, its temperature and its good name.

Seen in the wild: silent data corruption by a defective core, TF32 left on where fp32 was meant, a BLAS that does not
match its driver, a CPU build that answers in place of the GPU. Only the numbers show it. The reference is computed in
float64 on the CPU from the very inputs the device got, so that rounding the inputs is no part of the error.
"""

from __future__ import annotations

import math
from typing import Any

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View, failed, passed, undecided
from envcheck.checks.env import _fp8, _group

CHECK = Check(
    promise="a matrix product equals the float64 reference, in every dtype the device has",
    level="quick",
    seconds=0.5,
    timeout=90.0,
    ranks=0,
)

ROWS, INNER, COLUMNS = 512, 2048, 384
# Of what a product is rounded to; FP8 products are made in bfloat16. TF32 cuts its operands off after 10 bits.
UNIT_ROUNDOFF = {"float32": 2.0**-24, "tf32": 2.0**-10, "float16": 2.0**-11, "bfloat16": 2.0**-8, "float8": 2.0**-8}
ADDED_IN_FP8 = 2.0**-14
BFLOAT16_SINCE = (8, 0)
BOUND_SOURCE = (
    "2*sqrt(k)*2^-24 for accumulating k products in fp32 (Higham & Mary 2019, doi 10.1137/18M1226312: rounding errors "
    "of zero-mean data grow as sqrt(k)), in FP8 2^-14 (Hopper adds FP8 products in about 14 bits: DeepSeek-V3 report, "
    "arXiv 2412.19437), plus 2 unit roundoffs of a 16-bit result or of TF32's operands; the factors 2 are ours"
)


def bound(dtype: str) -> float:
    """Return the largest relative Frobenius error a correct product of this dtype has."""
    accumulate = 2 * math.sqrt(INNER) * (ADDED_IN_FP8 if dtype == "float8" else UNIT_ROUNDOFF["float32"])
    return accumulate if dtype == "float32" else accumulate + 2 * UNIT_ROUNDOFF[dtype]


def required(entry: Measured) -> list[str]:
    """Return the dtypes this device must get right: bf16 is native from compute capability 8.0 on."""
    if not entry["is_cuda"]:
        return ["float32", "bfloat16"]
    native = tuple(entry.get("capability") or ()) >= BFLOAT16_SINCE
    return ["float32", "float16", "bfloat16"] if native else ["float32", "float16"]


def measure(rank: Rank) -> Measured:
    """Multiply in each dtype; say how far from float64 the product is, and where it was made."""
    import torch

    device = _group.device_of(rank)
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else ()
    first, error = _product(torch, device, torch.float32)
    entry: Measured = {**_group.standing(rank, first), "capability": list(capability)}
    lower = (name for name in required(entry) if name != "float32")
    errors = {"float32": error, **{name: _product(torch, device, getattr(torch, name))[1] for name in lower}}
    if tuple(capability) >= BFLOAT16_SINCE:
        torch.set_float32_matmul_precision("high")
        errors["tf32"] = _product(torch, device, torch.float32)[1]
        torch.set_float32_matmul_precision("highest")
    why = _fp8.lacking(torch, device, capability)
    if not why:
        errors["float8"] = _product8(torch, device)
    return {**entry, "errors": errors, "unsupported": {"float8": why} if why else {}}


def _product(torch: Any, device: Any, dtype: Any) -> tuple[Any, float]:
    """Return a product made on the device, and its relative Frobenius distance from the float64 one."""
    generator = torch.Generator().manual_seed(20)
    left = torch.randn(ROWS, INNER, generator=generator).to(dtype)
    right = torch.randn(INNER, COLUMNS, generator=generator).to(dtype)
    product = left.to(device) @ right.to(device)
    reference = left.double() @ right.double()
    return product, float((product.cpu().double() - reference).norm() / reference.norm())


def _product8(torch: Any, device: Any) -> float:
    """Return how far an FP8 product is from the float64 one of the very FP8 numbers it was made of."""
    generator = torch.Generator().manual_seed(20)
    left, right = (torch.randn(rows, INNER, generator=generator).to(device) for rows in (ROWS, COLUMNS))
    a, b = (_fp8.quantized(torch, operand, torch.float8_e4m3fn) for operand in (left, right))
    product = _fp8.multiply(torch, *a, *b).cpu().double()
    exact = [(numbers.float() * scale).cpu().double() for numbers, scale in (a, b)]
    reference = exact[0] @ exact[1].t()
    return float((product - reference).norm() / reference.norm())


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail on the first rank and dtype whose error is above its bound, or is no number."""
    found = _group.problem(view, ranks, backend=False)
    if found is not None:
        return found
    margins = []
    for entry in ranks:
        errors = entry.get("errors") or {}
        owed = required(entry)
        for dtype in (name for name in UNIT_ROUNDOFF if name in owed or name in errors):
            if dtype not in errors:
                return undecided(f"rank {entry['rank']} measured no {dtype} product", fix="see the check's log")
            if not _group.finite(errors[dtype]) or not 0 <= errors[dtype] <= bound(dtype):
                return _wrong(entry, dtype, errors[dtype])
            margins.append((errors[dtype] / bound(dtype), dtype, errors[dtype]))
    _, dtype, error = max(margins)
    return passed(
        f"products agree with float64 on {len(ranks)} rank(s); closest to its bound: {dtype}",
        value=error,
        unit="relative error",
        limit=Limit(bound(dtype), "relative error", BOUND_SOURCE, "at most"),
        errors=ranks[0]["errors"],
    )


def _wrong(entry: Measured, dtype: str, error: Any) -> Outcome:
    return failed(
        f"rank {entry['rank']} on {entry['device']}: the {dtype} product is off by {error}",
        fix="run it on another GPU: wrong on this one alone, take the GPU out; on all, reinstall torch and its CUDA",
        value=error if _group.finite(error) else None,
        unit="relative error",
        limit=Limit(bound(dtype), "relative error", BOUND_SOURCE, "at most"),
        rank=entry["rank"],
        device=entry["device"],
        errors=entry["errors"],
    )
