"""Rank 0 sends one element wrong, so every rank gets it wrong."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import all_reduce

CHECK = all_reduce.CHECK
judge = all_reduce.judge


def measure(rank: Rank) -> Measured:
    """Add 1 to element 7 of what this rank sends."""
    import torch.distributed as dist  # noqa: PLC0415 (as a check does)

    honest = dist.all_reduce

    def lying(tensor: Any, *arguments: Any) -> None:
        tensor[7] += 1
        honest(tensor, *arguments)

    if rank.rank == 0:
        dist.all_reduce = lying
    return all_reduce.measure(rank)
