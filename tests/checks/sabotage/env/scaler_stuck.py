"""The gradient scale stays what it was."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Measured, Outcome, Rank, Ranks, View, passed
from envcheck.checks.env import amp

CHECK = amp.CHECK


def measure(rank: Rank) -> Measured:
    """Have every update set the scale that was there."""
    import torch  # noqa: PLC0415 (as a check does)

    honest = torch.amp.GradScaler.update

    def stuck(scaler: Any) -> None:
        honest(scaler, 1024.0)

    torch.amp.GradScaler.update = stuck
    device = torch.device(rank.device)
    return {"rank": rank.rank, "runs": {name: amp.train(torch, device, name)[1] for name in ("float32", "float16")}}


def judge(view: View, ranks: Ranks) -> Outcome:  # noqa: ARG001 (a judge's signature)
    """Judge rank 1 as amp would on a GPU."""
    return amp.untrained(1, "float16", ranks[1]["runs"]) or passed("the scaler works")
