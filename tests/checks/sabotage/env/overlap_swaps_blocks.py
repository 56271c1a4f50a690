"""An all-reduce whose sums are right and lie in the wrong place: two blocks of the message are swapped."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import overlap

CHECK = overlap.CHECK
judge = overlap.judge
BLOCK = 4096


def measure(rank: Rank) -> Measured:
    """Swap the first two blocks of each message on rank 1, of those that DDP does not send."""
    import torch.distributed as dist  # noqa: PLC0415 (as a check does)

    honest = dist.all_reduce

    class Swapping:
        """Work that swaps when it is waited for."""

        def __init__(self, tensor: Any, work: Any) -> None:
            self.tensor, self.work = tensor, work

        def wait(self) -> None:
            """Wait, and swap."""
            self.work.wait()
            first, second = self.tensor[:BLOCK].clone(), self.tensor[BLOCK : 2 * BLOCK].clone()
            self.tensor[:BLOCK], self.tensor[BLOCK : 2 * BLOCK] = second, first

    def all_reduce(tensor: Any, *given: Any, **options: Any) -> Any:
        work = honest(tensor, *given, **options)
        mine = rank.rank == 1 and options.get("async_op") and "group" not in options
        return Swapping(tensor, work) if mine and tensor.numel() > 2 * BLOCK else work

    overlap.STEPS["cpu"] = 2
    dist.all_reduce = all_reduce
    return overlap.measure(rank)
