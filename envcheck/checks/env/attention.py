"""Attention has several kernels, and which one runs is chosen silently.

Seen in the wild: flash attention that is not in the wheel, so that long contexts run out of memory; a kernel that is
wrong for causal masks on a new GPU only. Each backend is asked for by name and compared, output and gradient, with a
float64 softmax(Q K^T / sqrt d) V on the CPU; what is not there is named, and the math backend has to be.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View, failed, passed, skipped, undecided
from envcheck.checks.env import _group, _precision

CHECK = Check(
    promise="each attention kernel that is there equals the float64 reference, causal or not",
    level="standard",
    seconds=1.0,
    timeout=90.0,
    ranks=0,
)

BATCH, HEADS, TOKENS, WIDTH = 2, 4, 160, 64
BACKENDS = {
    "math": "MATH",
    "flash": "FLASH_ATTENTION",
    "memory-efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
}
ACCUMULATED = 1e-4


def limit(dtype: str) -> Limit:
    """Return the largest relative Frobenius error a correct kernel of this dtype has."""
    source = (
        "0.0001 for fp32, wide of its 0.000001 and below TF32's 0.0003; plus 6 unit roundoffs where scores, weights "
        "and results are rounded to 16 bits (ours)"
    )
    return Limit(ACCUMULATED + 6 * _precision.UNIT_ROUNDOFF[dtype], "relative error", source, "at most")


def measure(rank: Rank) -> Measured:
    """Run each backend in each dtype; say how far from float64 it is, or why it does not run."""
    import torch

    device = _group.device_of(rank)
    probe = torch.zeros(1, device=device)
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else ()
    entry: Measured = {**_group.standing(rank, probe), "capability": list(capability)}
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:
        return {**entry, "unsupported": f"torch {torch.__version__} cannot be asked for a backend (2.3 can)"}
    errors: dict[str, float] = {}
    lacking: dict[str, str] = {}
    for name, member in BACKENDS.items():
        only = functools.partial(sdpa_kernel, getattr(SDPBackend, member, None))
        for dtype in _precision.dtypes(entry):
            told = _tried(torch, device, dtype, only)
            if isinstance(told, str):
                lacking[f"{name} {dtype}"] = told
            else:
                errors[f"{name} {dtype}"] = told
    return {**entry, "errors": errors, "lacking": lacking}


def _tried(torch: Any, device: Any, dtype: str, only: Callable[[], Any]) -> float | str:
    """Return the error of the one kernel that is allowed, or why it does not run."""
    try:
        with warnings.catch_warnings(), only():
            # Why a backend does not run is warned of, then raised.
            warnings.simplefilter("ignore")
            return _error(torch, device, getattr(torch, dtype))
    except (RuntimeError, AssertionError, TypeError) as error:
        return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _error(torch: Any, device: Any, dtype: Any) -> float:
    """Return the largest relative error of output and query gradient, causal and not."""
    generator = torch.Generator().manual_seed(31)
    shape = (BATCH, HEADS, TOKENS, WIDTH)
    query, key, value, upstream = (torch.randn(*shape, generator=generator).to(dtype) for _ in range(4))
    worst = []
    for causal in (False, True):
        asked = query.to(device).clone().requires_grad_()
        output = torch.nn.functional.scaled_dot_product_attention(
            asked, key.to(device), value.to(device), is_causal=causal
        )
        output.backward(upstream.to(device))
        reference = _reference(torch, query.double(), key.double(), value.double(), upstream.double(), causal)
        made = (output.detach(), asked.grad)
        worst += [float((one.cpu().double() - other).norm() / other.norm()) for one, other in zip(made, reference)]
    return max(worst, key=lambda error: error if error == error else float("inf"))  # noqa: PLR0124 (NaN is the worst)


def _reference(torch: Any, query: Any, key: Any, value: Any, upstream: Any, causal: bool) -> tuple[Any, Any]:  # noqa: FBT001 (torch's flag)
    query = query.requires_grad_()
    scores = query @ key.transpose(-2, -1) / WIDTH**0.5
    if causal:
        scores = scores.masked_fill(~torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril(), float("-inf"))
    output = scores.softmax(-1) @ value
    output.backward(upstream)
    return output.detach(), query.grad


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail on the first kernel whose error is above its bound, or is no number; name what is not there."""
    found = _group.problem(view, ranks, backend=False)
    if found is not None:
        return found
    reasons = {entry.get("unsupported") for entry in ranks}
    if None not in reasons:
        return skipped(min(map(str, reasons)))
    worst = (-1.0, "", 0.0)
    for entry in ranks:
        errors = entry.get("errors") or {}
        absent = [dtype for dtype in _precision.dtypes(entry) if f"math {dtype}" not in errors]
        if absent:
            why = (entry.get("lacking") or {}).get(f"math {absent[0]}") or "see the check's log"
            return undecided(f"rank {entry['rank']}: the math backend did not run in {absent[0]}", fix=why)
        for kernel, error in errors.items():
            bound = limit(kernel.split()[-1])
            if not _group.finite(error) or not 0 <= error <= bound.value:
                return _wrong(entry, kernel, error)
            worst = max(worst, (error / bound.value, kernel, error))
    return _passed(ranks, worst)


def _passed(ranks: Ranks, worst: tuple[float, str, float]) -> Outcome:
    there = sorted({kernel.split()[0] for entry in ranks for kernel in entry["errors"]}, key=list(BACKENDS).index)
    absent = [name for name in BACKENDS if name not in there]
    also = f"; not here: {', '.join(absent)}" if absent else ""
    return passed(
        f"{', '.join(there)} agree with float64 on {len(ranks)} rank(s){also}",
        value=worst[2],
        unit="relative error",
        limit=limit(worst[1].split()[-1]),
        errors=ranks[0]["errors"],
        lacking=ranks[0].get("lacking"),
    )


def _wrong(entry: Measured, kernel: str, error: Any) -> Outcome:
    return failed(
        f"rank {entry['rank']} on {entry['device']}: {kernel} attention is off by {error}",
        fix="take another backend (torch.nn.attention.sdpa_kernel) and update torch; run the matmul check on this GPU",
        value=error if _group.finite(error) else None,
        unit="relative error",
        limit=limit(kernel.rpartition(" ")[2]),
        rank=entry["rank"],
        errors=entry["errors"],
    )
