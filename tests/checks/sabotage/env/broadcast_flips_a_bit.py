"""One bit of one element of a broadcast flips on its way to rank 1."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import collective_bandwidth
from envcheck.checks.env.support.collectives import timed_collectives

CHECK = collective_bandwidth.CHECK
judge = collective_bandwidth.judge


def measure(rank: Rank) -> Measured:
    """Flip the lowest bit of element 4242 of what rank 1 gets of large messages."""
    import torch  # noqa: PLC0415 (as a check does)
    import torch.distributed as dist  # noqa: PLC0415 (as a check does)

    timed_collectives.SIZES["cpu"], timed_collectives.SMALL_ITERATIONS["cpu"] = [1 << 20], 2
    honest = dist.broadcast

    def lying(tensor: Any, root: int) -> None:
        honest(tensor, root)
        if len(tensor) > 4242:
            tensor.view(torch.int32)[4242] ^= 1

    if rank.rank == 1:
        dist.broadcast = lying
    return collective_bandwidth.measure(rank)
