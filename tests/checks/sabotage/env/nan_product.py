"""A product with a NaN in it."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import matmul

CHECK = matmul.CHECK
judge = matmul.judge


def measure(rank: Rank) -> Measured:
    """Put a NaN into rank 1's fp32 products."""
    import torch  # noqa: PLC0415 (as a check does)

    honest = torch.Tensor.__matmul__

    def lying(left: Any, right: Any) -> Any:
        product = honest(left, right)
        if product.dtype == torch.float32:
            product[0, 4] = float("nan")
        return product

    if rank.rank == 1:
        torch.Tensor.__matmul__ = lying
    return matmul.measure(rank)
