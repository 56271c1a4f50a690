"""Gradients that are averaged, and off by a part in ten thousand: what a lossy reduction leaves of fp32."""

from __future__ import annotations

from typing import Any

from envcheck.checks import Measured, Rank
from envcheck.checks.env import ddp

CHECK = ddp.CHECK
judge = ddp.judge


def measure(rank: Rank) -> Measured:
    """Scale what DDP's own all-reduce gives, on every rank alike, so that replicas stay equal."""
    import torch  # noqa: PLC0415 (as a check does)

    honest = torch.nn.parallel.DistributedDataParallel

    def lossy(module: Any, **options: Any) -> Any:
        model = honest(module, **options)
        model.register_comm_hook(None, lambda _state, bucket: _scaled(bucket))
        return model

    torch.nn.parallel.DistributedDataParallel = lossy
    return ddp.measure(rank)


def _scaled(bucket: Any) -> Any:
    import torch.distributed as dist  # noqa: PLC0415 (as above)

    work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
    return work.get_future().then(lambda done: done.value()[0].mul_(1 + 1e-4))
