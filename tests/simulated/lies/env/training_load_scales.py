"""Every layer gives 5 % too much."""

from __future__ import annotations

from envcheck.checks import Measured, Rank
from envcheck.checks.env import training_load

CHECK = training_load.CHECK
judge = training_load.judge


def measure(rank: Rank) -> Measured:
    """Scale what every layer gives by 1.05."""
    import torch  # noqa: PLC0415 (as a check does)

    honest = torch.nn.functional.linear
    torch.nn.functional.linear = lambda *given, **more: honest(*given, **more) * 1.05
    return training_load.measure(rank)
