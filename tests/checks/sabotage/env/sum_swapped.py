"""Two chunks arrive in each other's place, which a sum of ones would never show."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import all_reduce

CHECK = all_reduce.CHECK
judge = all_reduce.judge
CHUNK = 1 << 18


def measure(rank: Rank) -> Measured:
    """Swap the first two chunks of what rank 1 gets back."""
    import torch.distributed as dist  # noqa: PLC0415 (as a check does)

    honest = dist.all_reduce

    def lying(tensor: Any, *arguments: Any) -> None:
        honest(tensor, *arguments)
        first = tensor[:CHUNK].clone()
        tensor[:CHUNK] = tensor[CHUNK : 2 * CHUNK]
        tensor[CHUNK : 2 * CHUNK] = first

    if rank.rank == 1:
        dist.all_reduce = lying
    return all_reduce.measure(rank)
