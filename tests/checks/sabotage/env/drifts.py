"""One rank's last step is not the others': its gradients were right, its weights are not."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import ddp

CHECK = ddp.CHECK
judge = ddp.judge


def measure(rank: Rank) -> Measured:
    """Move one weight of rank 1 by one bit after the last step."""
    import torch  # noqa: PLC0415 (as a check does)

    taken = []
    honest = torch.optim.SGD.step

    def drifting(self: Any, *arguments: Any) -> None:
        honest(self, *arguments)
        taken.append(1)
        if len(taken) == ddp.STEPS:
            weight = self.param_groups[0]["params"][0].data
            weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0))

    if rank.rank == 1:
        torch.optim.SGD.step = drifting
    return ddp.measure(rank)
