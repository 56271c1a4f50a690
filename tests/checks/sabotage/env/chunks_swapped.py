"""Two chunks of an all-to-all arrive in each other's place; the time it took is an honest one."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import collective_bandwidth
from envcheck.checks.env.support.collectives import timed_collectives

CHECK = collective_bandwidth.CHECK
judge = collective_bandwidth.judge
CHUNK = 1 << 14


def measure(rank: Rank) -> Measured:
    """Swap the first two chunks of what rank 1 gets of large messages."""
    import torch.distributed as dist  # noqa: PLC0415 (as a check does)

    timed_collectives.SIZES["cpu"], timed_collectives.SMALL_ITERATIONS["cpu"] = [1 << 20], 2
    honest = dist.all_to_all_single

    def lying(got: Any, sent: Any) -> None:
        honest(got, sent)
        if len(got) > 2 * CHUNK:
            first = got[:CHUNK].clone()
            got[:CHUNK] = got[CHUNK : 2 * CHUNK]
            got[CHUNK : 2 * CHUNK] = first

    if rank.rank == 1:
        dist.all_to_all_single = lying
    return collective_bandwidth.measure(rank)
