"""The loss is half of what it is."""

from __future__ import annotations

from envcheck.checks import Measured, Rank
from envcheck.checks.env import training_load

CHECK = training_load.CHECK
judge = training_load.judge


def measure(rank: Rank) -> Measured:
    """Halve the loss."""
    import torch  # noqa: PLC0415 (as a check does)

    honest = torch.nn.functional.mse_loss
    torch.nn.functional.mse_loss = lambda *given, **more: honest(*given, **more) * 0.5
    return training_load.measure(rank)
