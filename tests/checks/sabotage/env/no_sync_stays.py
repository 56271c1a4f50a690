"""The last micro-batch is under no_sync too: every rank steps with its own gradients."""

from __future__ import annotations

import contextlib
from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import ddp_no_sync

CHECK = ddp_no_sync.CHECK
judge = ddp_no_sync.judge


def measure(rank: Rank) -> Measured:
    """Have the context never switch synchronisation on again."""
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415 (as a check does)

    def stays(model: Any) -> contextlib.AbstractContextManager[None]:
        model.require_backward_grad_sync = False
        return contextlib.nullcontext()

    DistributedDataParallel.no_sync = stays
    return ddp_no_sync.measure(rank)
