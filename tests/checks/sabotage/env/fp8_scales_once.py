"""Rank 1's FP8 products of gradients have the scale of one operand undone only."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import fp8_training
from envcheck.checks.env.support.training import fp8_products

CHECK = fp8_training.CHECK
judge = fp8_training.judge


def measure(rank: Rank) -> Measured:
    """Leave out the scale of what gradients are multiplied by."""
    honest = fp8_products.multiply

    def careless(torch: Any, left: Any, left_scale: Any, right: Any, right_scale: Any) -> Any:
        once = torch.ones_like(right_scale) if left.dtype == torch.float8_e5m2 else right_scale
        return honest(torch, left, left_scale, right, once)

    if rank.rank == 1:
        fp8_products.multiply = careless
    return fp8_training.measure(rank)
