"""One size took no number of seconds on rank 1."""

from __future__ import annotations

from envcheck.checks import Measured, Rank
from envcheck.checks.env import collective_bandwidth
from envcheck.checks.env.support.collectives import timed_collectives

CHECK = collective_bandwidth.CHECK
judge = collective_bandwidth.judge


def measure(rank: Rank) -> Measured:
    """Make rank 1's time of the one large send/recv a NaN."""
    timed_collectives.SIZES["cpu"], timed_collectives.SMALL_ITERATIONS["cpu"] = [1 << 20], 2
    measured = collective_bandwidth.measure(rank)
    if rank.rank == 1:
        measured["curves"]["send/recv"][0]["seconds"] = float("nan")
    return measured
