"""The gradient scale stays what it was."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import amp

CHECK = amp.CHECK
judge = amp.judge


def measure(rank: Rank) -> Measured:
    """Have every update set the scale that was there."""
    import torch  # noqa: PLC0415 (as a check does)

    honest = torch.amp.GradScaler.update

    def stuck(scaler: Any) -> None:
        honest(scaler, 1024.0)

    torch.amp.GradScaler.update = stuck
    return amp.measure(rank)
