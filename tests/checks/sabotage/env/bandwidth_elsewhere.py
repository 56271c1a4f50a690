"""Rank 1 says that its tensors were on a GPU, which it does not have."""

from __future__ import annotations

from envcheck.checks import Measured, Rank
from envcheck.checks.env import collective_bandwidth
from envcheck.checks.env.support.collectives import timed_collectives

CHECK = collective_bandwidth.CHECK
judge = collective_bandwidth.judge


def measure(rank: Rank) -> Measured:
    """Lie about where rank 1 computed."""
    timed_collectives.SIZES["cpu"], timed_collectives.SMALL_ITERATIONS["cpu"] = [1 << 20], 2
    measured = collective_bandwidth.measure(rank)
    return {**measured, "is_cuda": True, "device": "GPU-1"} if rank.rank == 1 else measured
