"""A clock that stands still on rank 1: nothing took any time, so all of it would be hidden."""

from __future__ import annotations

from types import SimpleNamespace

from envcheck.checks import Measured, Rank
from envcheck.checks.env import overlap

CHECK = overlap.CHECK
judge = overlap.judge


def measure(rank: Rank) -> Measured:
    """Stop rank 1's clock."""
    overlap.STEPS["cpu"] = 2
    if rank.rank == 1:
        vars(overlap)["time"] = SimpleNamespace(perf_counter=lambda: 1.0)
    return overlap.measure(rank)
