"""No sabotage: fp16 training with the gradient scaler, on a CPU, which newer torch can do though nobody should."""

from __future__ import annotations

from envcheck.checks import Measured, Outcome, Rank, Ranks, View, passed
from envcheck.checks.env import amp

CHECK = amp.CHECK


def measure(rank: Rank) -> Measured:
    """Train in fp32 and in fp16."""
    import torch  # noqa: PLC0415 (as a check does)

    device = torch.device(rank.device)
    return {"rank": rank.rank, "runs": {name: amp.train(torch, device, name)[1] for name in ("float32", "float16")}}


def judge(view: View, ranks: Ranks) -> Outcome:  # noqa: ARG001 (a judge's signature)
    """Judge rank 1 as amp would on a GPU."""
    runs = ranks[1]["runs"]
    return amp.untrained(1, "float16", runs) or passed("the scaler works", value=runs["float16"]["scales"][-1])
