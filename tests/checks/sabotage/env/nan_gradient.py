"""One gradient of many is not a number on rank 1, after sound ones; whoever takes a maximum over them loses it."""

from __future__ import annotations

import math
from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import ddp
from envcheck.checks.env.support.training import model_replicas

CHECK = ddp.CHECK
judge = ddp.judge


def measure(rank: Rank) -> Measured:
    """Spoil the second gradient of rank 1 after each backward pass."""
    import torch  # noqa: PLC0415 (as a check does)

    wrap, backward = model_replicas.wrap, torch.Tensor.backward

    def spoiled(rank: Any, module: Any, **options: Any) -> Any:
        second = list(module.parameters())[1]

        def back(loss: Any) -> None:
            backward(loss)
            if second.grad is not None and rank.rank == 1:
                second.grad.fill_(math.nan)

        torch.Tensor.backward = back
        return wrap(rank, module, **options)

    model_replicas.wrap = spoiled
    return ddp.measure(rank)
