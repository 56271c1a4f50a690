"""Two elements of one timed product change places."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import sustained_gemm

CHECK = sustained_gemm.CHECK
judge = sustained_gemm.judge


def measure(rank: Rank) -> Measured:
    """Have two elements of one timed product change places."""
    import torch  # noqa: PLC0415 (as a check does)

    honest, calls = torch.mm, [0]

    def lying(left: Any, right: Any, *, out: Any = None) -> Any:
        product = honest(left, right, out=out)
        calls[0] += 1
        if calls[0] == 5:
            product[77, 99], product[78, 98] = product[78, 98].clone(), product[77, 99].clone()
        return product

    torch.mm = lying
    return sustained_gemm.measure(rank)
