"""AdamW's moments are lost on the way, and only its settings come back."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import checkpoint

CHECK = checkpoint.CHECK
judge = checkpoint.judge


def measure(rank: Rank) -> Measured:
    """Halve one moment of the optimizer in the file."""
    import torch  # noqa: PLC0415 (as a check does)

    honest = torch.load

    def lying(*arguments: Any, **options: Any) -> Any:
        state = honest(*arguments, **options)
        state["optimizer"]["state"][0]["exp_avg"].mul_(0.5)
        return state

    torch.load = lying
    return checkpoint.measure(rank)
