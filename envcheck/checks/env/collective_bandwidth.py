"""All-reduce at full speed says little of the collectives that sharded and expert-parallel training waits for.

Each collective has its own curve (1 MiB up), latency (8 B to 32 KiB, p50 and p99) and limit; where none is known its
bus bandwidth is reported. None may pass what the links carry.
"""

from __future__ import annotations

from envcheck.checks import Check, Measured, Outcome, Rank, Ranks, View
from envcheck.checks.collectives import bandwidth_curves, timed_collectives, transports
from envcheck.checks.support import process_group

CHECK = Check(
    promise="every collective but all-reduce too is as fast as this GPU, link and count make it, where that is known",
    level="standard",
    seconds=9.0,
    cpu_seconds=5.5,
    timeout=300.0,
    ranks=0,
    least_ranks=2,
    performance=True,
    limits=("all-gather-bandwidth", "broadcast-bandwidth", "reduce-scatter-bandwidth", "send-recv-bandwidth"),
)

# Each by its rows of limits.json.
ROWS = {
    "all-gather": "all-gather-bandwidth",
    "reduce-scatter": "reduce-scatter-bandwidth",
    "all-to-all": "all-to-all-bandwidth",
    "broadcast": "broadcast-bandwidth",
    "send/recv": "send-recv-bandwidth",
}
# What every gloo has; the others came to it later.
GLOO_HAS = ("broadcast", "send/recv")


def measure(rank: Rank) -> Measured:
    """Time each collective over small messages and a curve of large ones, as this rank sees them."""
    import torch

    device = process_group.device_of(rank)
    transports.ask(rank)
    with process_group.group(rank) as dist:
        curves = timed_collectives.curves(torch, dist, rank, device, [*ROWS])
        probe = torch.zeros(1, device=device)
        return {**process_group.standing(rank, probe, dist.get_backend()), **curves, "nccl": transports.read(rank)}


@process_group.sound(alone="one rank sends to no other: its bus bandwidth is 0 by definition")
def judge(view: View, ranks: Ranks) -> Outcome:
    """Judge each collective's best bus bandwidth; the worst of them is the outcome."""
    return bandwidth_curves.judge(view, ranks, GLOO_HAS if view.mode == "cpu" else [*ROWS], ROWS)
