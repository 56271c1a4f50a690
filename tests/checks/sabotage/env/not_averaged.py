"""DDP is bypassed: each rank trains on its own data alone."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import ddp

CHECK = ddp.CHECK
judge = ddp.judge


def measure(rank: Rank) -> Measured:
    """Hand the bare model back in place of the wrapped one, with equal weights to begin with."""
    import torch  # noqa: PLC0415 (as a check does)

    def bypassed(module: Any, **_options: Any) -> Any:
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.fill_(0.01)
        return module

    torch.nn.parallel.DistributedDataParallel = bypassed
    return ddp.measure(rank)
