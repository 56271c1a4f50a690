"""Rank 1's FP8 product is made of the right numbers, and one of its scales is off by an eighth."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import matmul
from envcheck.checks.env.support.training import fp8_products

CHECK = matmul.CHECK
judge = matmul.judge


def measure(rank: Rank) -> Measured:
    """Scale the product by a little more than was meant."""
    honest = fp8_products.multiply

    def careless(torch: Any, left: Any, left_scale: Any, right: Any, right_scale: Any) -> Any:
        return honest(torch, left, left_scale * 1.125, right, right_scale)

    if rank.rank == 1:
        fp8_products.multiply = careless
    return matmul.measure(rank)
