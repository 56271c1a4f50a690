"""Rank 0 says that its model was on a GPU, which it does not have."""

from __future__ import annotations

from envcheck.checks import Measured, Rank
from envcheck.checks.env import overlap

CHECK = overlap.CHECK
judge = overlap.judge


def measure(rank: Rank) -> Measured:
    """Lie about where rank 0 computed."""
    overlap.STEPS["cpu"] = 2
    measured = overlap.measure(rank)
    return {**measured, "is_cuda": True, "device": "GPU-0"} if rank.rank == 0 else measured
