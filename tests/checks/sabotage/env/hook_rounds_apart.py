"""What rank 1's hook hands back is off by a rounding: replicas drift within any tolerance."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import ddp_hooks

CHECK = ddp_hooks.CHECK
judge = ddp_hooks.judge


def measure(rank: Rank) -> Measured:
    """Make rank 1's averaged gradient larger by a millionth."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks  # noqa: PLC0415 (as a check does)

    honest = default_hooks.fp16_compress_hook

    def lying(group: Any, bucket: Any) -> Any:
        return honest(group, bucket).then(lambda done: done.value() * (1 + 2.0**-20))

    # DDP refuses a hook whose annotations are not its own, but takes one without.
    lying.__annotations__.clear()
    if rank.rank == 1:
        default_hooks.fp16_compress_hook = lying
    return ddp_hooks.measure(rank)
