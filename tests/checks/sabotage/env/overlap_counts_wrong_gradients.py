"""The hook that counts DDP's buckets brings gradients that are twice as large, the same on every rank."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import overlap

CHECK = overlap.CHECK
judge = overlap.judge


def measure(rank: Rank) -> Measured:
    """Double what the all-reduce hook brings."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks  # noqa: PLC0415 (as a check does)

    honest = default_hooks.allreduce_hook

    def doubling(group: Any, bucket: Any) -> Any:
        return honest(group, bucket).then(lambda done: done.value() * 2)

    overlap.STEPS["cpu"] = 2
    default_hooks.allreduce_hook = doubling
    return overlap.measure(rank)
