"""A worker writes into a batch that it has sent already."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import dataloader

CHECK = dataloader.CHECK
judge = dataloader.judge


def measure(rank: Rank) -> Measured:
    """Overwrite one element of the third batch before it is read."""
    import torch  # noqa: PLC0415 (as a check does)

    honest = torch.utils.data.DataLoader.__iter__

    def lying(loader: Any) -> Any:
        for number, batch in enumerate(honest(loader)):
            if number == 2:
                batch[1, 5000] = -1
            yield batch

    torch.utils.data.DataLoader.__iter__ = lying
    return dataloader.measure(rank)
