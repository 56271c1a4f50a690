"""Every product of a linear layer is a thousandth too large, on every rank alike, so that the ranks agree."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import overlap

CHECK = overlap.CHECK
judge = overlap.judge


def measure(rank: Rank) -> Measured:
    """Scale what a linear layer gives."""
    import torch  # noqa: PLC0415 (as a check does)

    honest = torch.nn.functional.linear

    def larger(*given: Any, **options: Any) -> Any:
        return honest(*given, **options) * 1.001

    overlap.STEPS["cpu"] = 2
    torch.nn.functional.linear = larger
    return overlap.measure(rank)
