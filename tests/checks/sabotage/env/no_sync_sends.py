"""A no_sync that does nothing: every micro-batch costs a collective."""

from __future__ import annotations

import contextlib
from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import ddp_no_sync

CHECK = ddp_no_sync.CHECK
judge = ddp_no_sync.judge


def measure(rank: Rank) -> Measured:
    """Have the context change nothing."""
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415 (as a check does)

    def nothing(_model: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    DistributedDataParallel.no_sync = nothing
    return ddp_no_sync.measure(rank)
