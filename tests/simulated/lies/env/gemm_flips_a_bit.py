"""One bit of one element of one timed product is flipped."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import gemm_throughput

CHECK = gemm_throughput.CHECK
judge = gemm_throughput.judge


def measure(rank: Rank) -> Measured:
    """One bit of one element of one timed product is flipped."""
    import torch  # noqa: PLC0415 (as a check does)

    honest, calls = torch.mm, [0]

    def lying(left: Any, right: Any, *, out: Any = None) -> Any:
        product = honest(left, right, out=out)
        calls[0] += out is not None
        if calls[0] == 5:
            product.view(torch.int16)[77, 99] ^= 1
        return product

    torch.mm = lying
    return gemm_throughput.measure(rank)
