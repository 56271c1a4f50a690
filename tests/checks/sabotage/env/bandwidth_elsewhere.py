"""Rank 1 says that its tensors were on a GPU, which it does not have."""

from __future__ import annotations

from envcheck.checks import Measured, Rank
from envcheck.checks.env import _bandwidth, collective_bandwidth

CHECK = collective_bandwidth.CHECK
judge = collective_bandwidth.judge


def measure(rank: Rank) -> Measured:
    """Lie about where rank 1 computed."""
    _bandwidth.SIZES["cpu"], _bandwidth.SMALL_ITERATIONS["cpu"] = [1 << 20], 2
    measured = collective_bandwidth.measure(rank)
    return {**measured, "is_cuda": True, "device": "GPU-1"} if rank.rank == 1 else measured
