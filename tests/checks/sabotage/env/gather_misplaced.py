"""Rank 1 finds in the place of rank 0's first chunk its second, as if a write had gone to the wrong address."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import collectives

CHECK = collectives.CHECK
judge = collectives.judge
CHUNK = 16


def measure(rank: Rank) -> Measured:
    """Copy a chunk over the one before it in what rank 1 gathers."""
    import torch.distributed as dist  # noqa: PLC0415 (as a check does)

    honest = dist.all_gather

    def lying(parts: Any, tensor: Any, **options: Any) -> None:
        honest(parts, tensor, **options)
        parts[0][:CHUNK] = parts[0][CHUNK : 2 * CHUNK].clone() if len(tensor) >= 2 * CHUNK else parts[0][:CHUNK]

    if rank.rank == 1:
        dist.all_gather = lying
    return collectives.measure(rank)
