"""What is below zero passes in part."""

from __future__ import annotations

from envcheck.checks import Measured, Rank
from envcheck.checks.env import training_load

CHECK = training_load.CHECK
judge = training_load.judge


def measure(rank: Rank) -> Measured:
    """Let a part of what is below zero pass."""
    import torch  # noqa: PLC0415 (as a check does)

    leaky = torch.nn.functional.leaky_relu
    torch.nn.functional.relu = lambda given, *_options, **_more: leaky(given, 0.05)
    return training_load.measure(rank)
