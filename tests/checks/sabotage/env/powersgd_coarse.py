"""PowerSGD whose left factor is never made orthogonal: an approximation of nothing in particular."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import ddp_hooks

CHECK = ddp_hooks.CHECK
judge = ddp_hooks.judge


def measure(rank: Rank) -> Measured:
    """Take the step between the two factors out of it."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook  # noqa: PLC0415 (as a check does)

    def nothing(_matrices: Any, epsilon: float = 0) -> None:  # noqa: ARG001 (the name it is called by)
        return None

    powerSGD_hook._orthogonalize = nothing  # noqa: SLF001 (what is sabotaged)
    return ddp_hooks.measure(rank)
