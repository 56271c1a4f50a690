"""Autocast that does nothing."""

from __future__ import annotations

import contextlib
from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import amp

CHECK = amp.CHECK
judge = amp.judge


def measure(rank: Rank) -> Measured:
    """Take autocast out of torch."""
    import torch  # noqa: PLC0415 (as a check does)

    def nothing(*_arguments: Any, **_options: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    torch.autocast = nothing
    return amp.measure(rank)
