"""A no_sync that does nothing: a step without communication looks as dear as one with it, so all of it seems hidden."""

from __future__ import annotations

import contextlib

from envcheck.checks import Measured, Rank
from envcheck.checks.env import overlap

CHECK = overlap.CHECK
judge = overlap.judge


def measure(rank: Rank) -> Measured:
    """Have DDP synchronise at every step."""
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415 (as a check does)

    overlap.STEPS["cpu"] = 2
    DistributedDataParallel.no_sync = lambda _self: contextlib.nullcontext()
    return overlap.measure(rank)
