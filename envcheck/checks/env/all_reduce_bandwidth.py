"""Links that are up and slow: training takes a third longer and nobody knows why.

Judged by the largest bus bandwidth of the curve, where data says what this GPU model, transport and count reach, and
between hosts by what their ports carry; reported elsewhere. The transport is what NCCL's own log proves, where there is
one.
"""

from __future__ import annotations

import dataclasses

from envcheck.checks import Check, Measured, Outcome, Rank, Ranks, View
from envcheck.checks.collectives import bandwidth_curves, timed_collectives, transports
from envcheck.checks.support import process_group

CHECK = Check(
    promise="all-reduce completes at every size, and as fast as this GPU, link and count do where that is known",
    level="standard",
    seconds=5.0,
    cpu_seconds=1.2,
    timeout=240.0,
    ranks=0,
    least_ranks=2,
    performance=True,
    limits=("all-reduce-between-hosts",),
)

NAME = "all-reduce"


def measure(rank: Rank) -> Measured:
    """Time all-reduces over small messages and a curve of large ones, as this rank sees them."""
    import torch

    device = process_group.device_of(rank)
    transports.ask(rank)
    with process_group.group(rank) as dist:
        curves = timed_collectives.curves(torch, dist, rank, device, [NAME])
        return {
            **process_group.standing(rank, torch.zeros(1, device=device), dist.get_backend()),
            "curve": curves["curves"].get(NAME, []),
            "latency": curves["latency"],
            "nccl": transports.read(rank),
        }


@process_group.sound(alone="one rank sends to no other: its bus bandwidth is 0 by definition")
def judge(view: View, ranks: Ranks) -> Outcome:
    """Judge the best bus bandwidth of the curve where a limit is known; above what the links can do is an error."""
    curves = [{**entry, "curves": {NAME: entry.get("curve") or []}} for entry in ranks]
    outcome = bandwidth_curves.judge(view, curves, [NAME], {NAME: "all-reduce-bandwidth"})
    details = {name: value for name, value in outcome.details.items() if name not in ("curves", "unsupported")}
    if "curves" in outcome.details:
        details["curve"] = outcome.details["curves"][NAME]
    return dataclasses.replace(outcome, details=details)
