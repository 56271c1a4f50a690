"""A torch.compile that hands the model back as it is."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import compiled

CHECK = compiled.CHECK
judge = compiled.judge


def measure(rank: Rank) -> Measured:
    """Compile nothing."""
    import torch  # noqa: PLC0415 (as a check does)

    def nothing(model: Any, **_options: Any) -> Any:
        return model

    torch.compile = nothing
    return compiled.measure(rank)
