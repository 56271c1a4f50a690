"""Every product is too large by 5 %."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import sustained_gemm

CHECK = sustained_gemm.CHECK
judge = sustained_gemm.judge


def measure(rank: Rank) -> Measured:
    """Every product is too large by 5 %."""
    import torch  # noqa: PLC0415 (as a check does)

    honest, calls = torch.mm, [0]

    def lying(left: Any, right: Any, *, out: Any = None) -> Any:
        calls[0] += 1
        return honest(left, right, out=out).mul_(1.05)

    torch.mm = lying
    return sustained_gemm.measure(rank)
