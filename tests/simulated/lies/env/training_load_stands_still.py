"""The optimizer does nothing."""

from __future__ import annotations

from envcheck.checks import Measured, Rank
from envcheck.checks.env import training_load

CHECK = training_load.CHECK
judge = training_load.judge


def measure(rank: Rank) -> Measured:
    """Have the optimizer do nothing."""
    import torch  # noqa: PLC0415 (as a check does)

    torch.optim.SGD.step = lambda *_given: None
    return training_load.measure(rank)
