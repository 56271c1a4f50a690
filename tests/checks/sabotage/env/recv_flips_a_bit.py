"""One bit of one element flips on the way from rank 1 to rank 0."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import collectives

CHECK = collectives.CHECK
judge = collectives.judge


def measure(rank: Rank) -> Measured:
    """Flip bit 3 of the first element of what rank 0 receives in int32."""
    import torch.distributed as dist  # noqa: PLC0415 (as a check does)

    honest = dist.batch_isend_irecv

    class Flipping:
        """The work of a receive that flips a bit when it is done."""

        def __init__(self, work: Any, tensor: Any) -> None:
            self.work, self.tensor = work, tensor

        def wait(self) -> None:
            self.work.wait()
            self.tensor[0] ^= 8

    def lying(operations: Any) -> Any:
        import torch  # noqa: PLC0415 (as a check does)

        works = honest(operations)
        if len(operations) > 2 or operations[1].tensor.dtype is not torch.int32:
            return works
        return [*works[:-1], Flipping(works[-1], operations[1].tensor)]

    if rank.rank == 0:
        dist.batch_isend_irecv = lying
    return collectives.measure(rank)
