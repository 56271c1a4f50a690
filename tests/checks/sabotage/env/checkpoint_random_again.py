"""The random generator's state is not restored, so that dropout goes other ways."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import checkpoint

CHECK = checkpoint.CHECK
judge = checkpoint.judge


def measure(rank: Rank) -> Measured:
    """Leave the generators as they are when a checkpoint is loaded."""
    import torch  # noqa: PLC0415 (as a check does)

    def nothing(*_arguments: Any) -> None:
        return None

    torch.set_rng_state = torch.cuda.set_rng_state = nothing
    return checkpoint.measure(rank)
