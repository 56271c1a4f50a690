"""One bit of one product flips in one of rank 1's repeats."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import fingerprint

CHECK = fingerprint.CHECK
judge = fingerprint.judge


def measure(rank: Rank) -> Measured:
    """Flip the lowest bit of one element of the second repeat's first product."""
    import torch  # noqa: PLC0415 (as a check does)

    honest = torch.Tensor.__matmul__
    made = []

    def lying(left: Any, right: Any) -> Any:
        product = honest(left, right)
        made.append(1)
        if len(made) == 3:
            product.view(torch.int32)[7, 9] ^= 1
        return product

    if rank.rank == 1:
        torch.Tensor.__matmul__ = lying
    return fingerprint.measure(rank)
