"""Rank 1 trains its shard on a gradient of its own making."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import fsdp

CHECK = fsdp.CHECK
judge = fsdp.judge


def measure(rank: Rank) -> Measured:
    """Make what rank 1 gets of each reduce-scatter a thousandth too large."""
    import torch.distributed as dist  # noqa: PLC0415 (as a check does)

    def scaled(honest: Any) -> Any:
        def lying(output: Any, *arguments: Any, **options: Any) -> Any:
            work = honest(output, *arguments, **options)
            if work is not None:
                work.wait()
            output.mul_(1.001)
            return work

        return lying

    if rank.rank == 1:
        for name in ("reduce_scatter_tensor", "reduce_scatter_single"):
            if hasattr(dist, name):
                setattr(dist, name, scaled(getattr(dist, name)))
    return fsdp.measure(rank)
