"""A GPU that multiplies wrongly keeps its clocks, its temperature and its good name.

Seen in the wild: silent data corruption by a defective core, TF32 left on where fp32 was meant, a BLAS that does not
match its driver, a CPU build that answers in place of the GPU. Only the numbers show it. The reference is computed in
plain Python from the very inputs the device got, so that rounding the inputs is no part of the error: whole rows and
columns, and the product times random signs, in which every element counts (Freivalds 1977).
"""

from __future__ import annotations

import math
import random
from operator import mul
from typing import Any

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View, failed, passed, undecided, worst
from envcheck.checks.env.support.operators import seeded_numbers
from envcheck.checks.support import process_group
from envcheck.checks.training import fp8_products
from envcheck.counting import counted

CHECK = Check(
    promise="a matrix product equals one in plain Python, in every dtype the device has",
    level="quick",
    seconds=1.0,
    cpu_seconds=0.8,
    timeout=90.0,
    ranks=0,
)

INNER = 2048
# Rows and columns: odd sizes and one row; on GPUs a product of many tiles too.
SHAPES = {"cpu": ((97, 71), (1, 33)), "cuda": ((512, 384), (97, 71), (1, 33))}
SAMPLED = 3
# Of what a product is rounded to; FP8 products are made in bfloat16. TF32 cuts its operands off after 10 bits.
UNIT_ROUNDOFF = {"float32": 2.0**-24, "tf32": 2.0**-10, "float16": 2.0**-11, "bfloat16": 2.0**-8, "float8": 2.0**-8}
ADDED_IN_FP8 = 2.0**-14
BFLOAT16_SINCE = (8, 0)
EIGHT_BITS = 2.0**-4
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

    device = process_group.device_of(rank)
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else ()
    seed = seeded_numbers.seed(rank.rank)
    source = seeded_numbers.source(seed)
    first, error = _product(torch, device, "float32", source)
    entry: Measured = {**process_group.standing(rank, first), "capability": list(capability), "seed": seed}
    lower = (name for name in required(entry) if name != "float32")
    errors = {"float32": error, **{name: _product(torch, device, name, source)[1] for name in lower}}
    if tuple(capability) >= BFLOAT16_SINCE:
        torch.set_float32_matmul_precision("high")
        errors["tf32"] = _product(torch, device, "float32", source)[1]
        torch.set_float32_matmul_precision("highest")
    why = fp8_products.lacking(torch, device, capability)
    if not why:
        errors["float8"] = _product8(torch, device, source)
    return {**entry, "errors": errors, "unsupported": {"float8": why} if why else {}}


def _product(torch: Any, device: Any, dtype: str, source: random.Random) -> tuple[Any, float]:
    """Return a product made on the device, and the largest distance of any shape's product from its reference."""
    errors = []
    for rows, columns in SHAPES[device.type]:
        left, right = (
            seeded_numbers.rounded(seeded_numbers.uniform(source, n * INNER, -1, 1), dtype) for n in (rows, columns)
        )
        layout = source.choice(("contiguous", "transposed"))
        a = seeded_numbers.tensor(torch, left, (rows, INNER), dtype, device, layout)
        product = a @ seeded_numbers.tensor(torch, right, (columns, INNER), dtype, device).t()
        errors.append(distance(left, right, seeded_numbers.read(product), columns, source))
    return product, max(errors)


def distance(left: list[float], right: list[float], made: list[float], columns: int, source: random.Random) -> float:
    """Return how far `made` is from left right^T (both with INNER columns), as a relative Frobenius distance."""
    a, b = ([x[i : i + INNER] for i in range(0, len(x), INNER)] for x in (left, right))
    if len(made) != len(a) * columns:
        return math.inf
    rows = [made[i : i + columns] for i in range(0, len(made), columns)]
    some, others = ({source.randrange(len(x)) for _ in range(SAMPLED)} for x in (a, b))
    pairs = [(i, j) for i in some for j in range(columns)] + [(i, j) for j in others for i in range(len(a))]
    sampled = seeded_numbers.apart([rows[i][j] for i, j in pairs], [sum(map(mul, a[i], b[j])) for i, j in pairs])
    signs = [float(source.choice((-1, 1))) for _ in range(columns)]
    through = [sum(map(mul, signs, column)) for column in zip(*b)]
    whole = seeded_numbers.apart(
        [sum(map(mul, row, signs)) for row in rows], [sum(map(mul, row, through)) for row in a]
    )
    # One row says little of the rest: its sum may cancel.
    return max(sampled, whole) if len(a) > 1 else sampled


def _product8(torch: Any, device: Any, source: random.Random) -> float:
    """Return how far an FP8 product is from that of the very FP8 numbers it was made of."""
    rows, columns = 96, 64  # FP8 units want multiples of 16
    given = [
        seeded_numbers.rounded(seeded_numbers.uniform(source, n * INNER, -1, 1), "float32") for n in (rows, columns)
    ]
    tensors = [seeded_numbers.tensor(torch, x, (len(x) // INNER, INNER), "float32", device) for x in given]
    a, b = (fp8_products.quantized(torch, x, torch.float8_e4m3fn) for x in tensors)
    product = seeded_numbers.read(fp8_products.multiply(torch, *a, *b))
    left, right = (seeded_numbers.read(numbers.float() * scale) for numbers, scale in (a, b))
    # E4M3 keeps three bits after the first: half a step is 2^-4 of a number.
    rounding = max(seeded_numbers.apart(x, y) for x, y in zip((left, right), given))
    return distance(left, right, product, columns, source) if rounding < EIGHT_BITS else rounding


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail on every rank and dtype whose error is above its bound, or is not a number."""
    problem = process_group.problem(view, ranks, backend=False)
    if problem is not None:
        return problem
    margins, findings = [], []
    for entry in ranks:
        errors = entry.get("errors") or {}
        owed = required(entry)
        for dtype in (name for name in UNIT_ROUNDOFF if name in owed or name in errors):
            if dtype not in errors:
                summary = f"rank {entry['rank']} measured no {dtype} product"
                findings.append(
                    undecided(
                        summary,
                        fix="see the check's log",
                        code="matmul.unmeasured",
                        culprit=f"rank {entry['rank']}, {dtype}",
                    )
                )
            elif not process_group.finite(errors[dtype]) or not 0 <= errors[dtype] <= bound(dtype):
                findings.append(_wrong(entry, dtype, errors[dtype]))
            else:
                margins.append((errors[dtype] / bound(dtype), dtype, errors[dtype]))
    if findings or not margins:
        return worst(
            findings,
            otherwise=undecided("no product was measured", fix="see the check's log", code="matmul.unmeasured"),
        )
    _, dtype, error = max(margins)
    return passed(
        f"products agree with plain Python on {counted(len(ranks), 'rank')}; closest to its bound: {dtype}",
        value=error,
        unit="relative error",
        limit=Limit(bound(dtype), "relative error", BOUND_SOURCE, "at most"),
        errors=ranks[0]["errors"],
    )


def _wrong(entry: Measured, dtype: str, error: Any) -> Outcome:
    return failed(
        f"rank {entry['rank']} on {entry['device']}: the {dtype} product is off by {error}",
        fix="run it on another GPU: wrong on this one alone, take the GPU out; on all, reinstall torch and its CUDA",
        value=error if process_group.finite(error) else None,
        unit="relative error",
        limit=Limit(bound(dtype), "relative error", BOUND_SOURCE, "at most"),
        code="matmul.wrong",
        culprit=f"rank {entry['rank']} on {entry['device']}",
        rank=entry["rank"],
        device=entry["device"],
        errors=entry["errors"],
        seed=entry.get("seed"),
    )
