"""A checkpoint without BatchNorm's running mean."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import checkpoint

CHECK = checkpoint.CHECK
judge = checkpoint.judge


def measure(rank: Rank) -> Measured:
    """Drop one buffer as the file is written."""
    import torch  # noqa: PLC0415 (as a check does)

    honest = torch.save

    def lying(state: Any, file: Any) -> None:
        del state["model"]["1.running_mean"]
        honest(state, file)

    torch.save = lying
    return checkpoint.measure(rank)
