"""Rank 1 receives one element wrong."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import all_reduce

CHECK = all_reduce.CHECK
judge = all_reduce.judge


def measure(rank: Rank) -> Measured:
    """Add 1 to element 12345 of what this rank gets back."""
    import torch  # noqa: PLC0415 (as a check does)
    import torch.distributed as dist  # noqa: PLC0415 (as a check does)

    honest = dist.all_reduce

    def lying(tensor: Any, *arguments: Any) -> None:
        honest(tensor, *arguments)
        tensor[12345] += torch.ones(1, dtype=tensor.dtype)[0]

    if rank.rank == 1:
        dist.all_reduce = lying
    return all_reduce.measure(rank)
