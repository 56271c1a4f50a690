"""Two columns outside the corner change places in every product."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import gemm_throughput

CHECK = gemm_throughput.CHECK
judge = gemm_throughput.judge


def measure(rank: Rank) -> Measured:
    """Two columns outside the corner change places in every product."""
    import torch  # noqa: PLC0415 (as a check does)

    honest, calls = torch.mm, [0]

    def lying(left: Any, right: Any, *, out: Any = None) -> Any:
        product = honest(left, right, out=out)
        calls[0] += 1
        product[:, [100, 101]] = product[:, [101, 100]]
        return product

    torch.mm = lying
    return gemm_throughput.measure(rank)
