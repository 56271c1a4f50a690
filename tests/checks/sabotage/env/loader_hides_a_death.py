"""A loader that ends the epoch early when a worker has died, and calls that a success."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import dataloader

CHECK = dataloader.CHECK
judge = dataloader.judge


def measure(rank: Rank) -> Measured:
    """Swallow what the loader raises, and the signal that a worker is gone."""
    import torch  # noqa: PLC0415 (as a check does)
    from torch.utils.data._utils import signal_handling  # noqa: PLC0415 (as above)

    def deaf() -> None:
        return None

    honest = torch.utils.data.DataLoader.__iter__

    def lying(loader: Any) -> Any:
        try:
            yield from honest(loader)
        except (RuntimeError, OSError, EOFError):
            return

    signal_handling._error_if_any_worker_fails = deaf  # noqa: SLF001 (what is sabotaged)
    torch.utils.data.DataLoader.__iter__ = lying
    return dataloader.measure(rank)
