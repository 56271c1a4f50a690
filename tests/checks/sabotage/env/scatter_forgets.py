"""A reduce-scatter that hands rank 1 its own share, as if nobody else had taken part."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import collectives

CHECK = collectives.CHECK
judge = collectives.judge


def measure(rank: Rank) -> Measured:
    """Put what rank 1 sent in the place of what it got."""
    import torch.distributed as dist  # noqa: PLC0415 (as a check does)

    honest = dist.reduce_scatter

    def lying(output: Any, inputs: Any, **options: Any) -> None:
        honest(output, inputs, **options)
        output.copy_(inputs[rank.rank])

    if rank.rank == 1:
        dist.reduce_scatter = lying
    return collectives.measure(rank)
