"""A message between two ranks whose second block is the first one once more; sent by gloo, and judged without a log."""

from __future__ import annotations

import dataclasses
from typing import Any

from envcheck.checks import Measured, Outcome, Rank, Ranks, View, failed, passed, worst
from envcheck.checks.env import transport

CHECK = dataclasses.replace(transport.CHECK, gpus=0)
BLOCK = 4096


def measure(rank: Rank) -> Measured:
    from envcheck.checks.collectives import timed_collectives  # noqa: PLC0415 (as a check does)

    honest = timed_collectives.around

    def repeating(dist: Any, rank: Rank, sent: Any, received: Any, distance: int = 1) -> None:
        honest(dist, rank, sent, received, distance)
        if rank.rank == 1 and received.numel() == transport.PAIRED:
            received[BLOCK : 2 * BLOCK] = received[:BLOCK]

    transport.SIZE = 1 << 20
    timed_collectives.around = repeating
    return transport.measure(rank)


def judge(_: View, ranks: Ranks) -> Outcome:
    data = {entry["rank"]: ", ".join(entry["wrong"]) for entry in ranks if entry["wrong"]}
    actual = [failed(f"rank {rank}: {what}", fix="-", code="data.wrong") for rank, what in data.items()]
    return worst(actual, passed(f"{len(ranks)} ranks"))
