"""Rank 1 takes three times as long as the others."""

from __future__ import annotations

import time
from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import straggler

CHECK = straggler.CHECK
judge = straggler.judge


def measure(rank: Rank) -> Measured:
    """Have each of rank 1's products take three times as long."""
    import torch  # noqa: PLC0415 (as a check does)

    honest = torch.mm

    def slow(left: Any, right: Any, **options: Any) -> Any:
        began = time.perf_counter()
        product = honest(left, right, **options)
        until = began + 3 * (time.perf_counter() - began)
        while time.perf_counter() < until:
            pass
        return product

    if rank.rank == 1:
        torch.mm = slow
    return straggler.measure(rank)
