"""One timed product is not computed."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import gemm_throughput

CHECK = gemm_throughput.CHECK
judge = gemm_throughput.judge


def measure(rank: Rank) -> Measured:
    """One timed product is not computed."""
    import torch  # noqa: PLC0415 (as a check does)

    honest, calls = torch.mm, [0]

    def lying(left: Any, right: Any, *, out: Any = None) -> Any:
        calls[0] += out is not None
        return out if calls[0] == 5 else honest(left, right, out=out)

    torch.mm = lying
    return gemm_throughput.measure(rank)
