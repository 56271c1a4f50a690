"""nccl, stood in for by gloo on the same tensors; collectives take the simulated GPU's time."""

# ruff: noqa: ARG005, EM101, TRY003 (it stands in for torch: its names, signatures and words)

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

from . import gpu, speed, tensors

COLLECTIVES = (
    *("all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "all_to_all"),
    *("all_to_all_single", "broadcast", "send", "recv", "isend", "irecv", "reduce", "gather", "scatter"),
)
AVERAGING = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor")
REPLACED = ("init_process_group", "new_group", "get_backend", "destroy_process_group")
_groups: dict[Any, Any] = {}


def install(torch: Any) -> None:
    dist, inner = torch.distributed, torch.distributed.distributed_c10d
    begin, more, backend_of, leave = (getattr(dist, name) for name in REPLACED)

    def init(backend: Any = None, *args: Any, **kwargs: Any) -> None:
        gpu.Gpu.start()
        kwargs.pop("device_id", None)
        begin(*(["gloo"] if backend is not None else []), *args, **_plain(kwargs))
        _groups[None] = "nccl" if backend is None or "nccl" in str(backend) else str(backend)
        _log(dist.get_rank(), dist.get_world_size())

    def group(*args: Any, backend: Any = None, **kwargs: Any) -> Any:
        made = more(*args, backend="gloo", **_plain(kwargs))
        _groups[made] = backend or _groups.get(None)
        return made

    def get_backend(group: Any = None) -> Any:
        backend_of(group)
        return _groups.get(group) or _groups.get(None, "nccl")

    def destroy(group: Any = None) -> None:
        leave(group)
        _groups.pop(group, None)

    functions = (init, group, get_backend, destroy, lambda: True)
    for name, function in zip((*REPLACED, "is_nccl_available"), functions, strict=True):
        setattr(dist, name, function)
        setattr(inner, name, function)
    _collectives(dist, inner)
    for name in ("buffer", "gradients", "parameters"):
        _bucket(torch, dist.GradBucket, name)


def _bucket(torch: Any, kind: Any, name: str) -> None:
    """Mark what DDP hands to a hook as lying on the GPU."""
    plain = getattr(kind, name)
    setattr(kind, name, lambda self: tensors.marked(torch, plain(self), torch.device("cuda", gpu.Gpu.current)))


def _log(rank: int, world: int) -> None:
    """Leave the log that NCCL is asked for, in its words: one channel to each other rank, and NVLS."""
    path = os.environ.get("NCCL_DEBUG_FILE")
    if path is None or os.environ.get("NCCL_DEBUG") != "INFO":
        return
    start = f"node:{os.getpid()}:{os.getpid()} [{rank}] NCCL INFO"
    peers = [f"Channel 00/0 : {rank}[{rank}] -> {to}[{to}] via P2P/CUMEM" for to in range(world) if to != rank]
    nvls = [f"NVLS multicast support is available on dev {rank}", "NVLS comm 0x5581 headRank 0 nHeads 2"]
    lines = [*(f"{start} {line}" for line in (*peers, *nvls)), "NCCL version 2.27.5+cuda12.8"]
    Path(path.replace("%%", "%")).write_text("\n".join(lines) + "\n")


def _plain(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name not in ("pg_options", "device_id")}


def _collectives(dist: Any, inner: Any) -> None:
    """Let each collective take its time, and refuse what NCCL refuses: tensors that are not on a GPU."""
    for name in ("all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list"):
        setattr(dist, name, _of_objects(getattr(dist, name)))
    barrier = dist.barrier
    dist.barrier = lambda group=None, async_op=False, device_ids=None: barrier(group, async_op)
    for name in COLLECTIVES:
        timed = _timed(dist, getattr(dist, name), name)
        setattr(dist, name, timed)
        setattr(inner, name, timed)


def _of_objects(collective: Any) -> Any:
    """Let a collective of objects send what it made of them from the CPU, where the stand-in's tensors lie."""

    @functools.wraps(collective)
    def call(*args: Any, **kwargs: Any) -> Any:
        groups = {**_groups}
        _groups.update(dict.fromkeys([None, *groups], "gloo"))
        try:
            return collective(*args, **kwargs)
        finally:
            _groups.update(groups)

    return call


def _timed(dist: Any, collective: Any, name: str) -> Any:
    @functools.wraps(collective)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = [t for t in speed.flat([args, kwargs]) if hasattr(t, "element_size")]
        if any(tensors.mark_of(t) is None for t in given) and _groups.get(kwargs.get("group")) == "nccl":
            raise RuntimeError("No backend type associated with device type cpu")
        if given:
            ranks, size = dist.get_world_size(), max(t.numel() * t.element_size() for t in given)
            share = 2 * (ranks - 1) / ranks if name == "all_reduce" else 1.0
            gpu.Gpu.works(size * share / speed.BANDWIDTH["link"])
        if not all(t.is_contiguous() for t in given):
            raise ValueError("Tensors must be contiguous")
        if kwargs.get("op") == dist.ReduceOp.AVG and name in AVERAGING:
            # gloo averages floats alone.
            work = collective(*args, **{**kwargs, "op": dist.ReduceOp.SUM})
            given[0].copy_(given[0].div(dist.get_world_size(), rounding_mode="floor"))
            return work
        if name == "all_gather_into_tensor" and args[0].dim() > args[1].dim():
            args = (args[0].view(-1), *args[1:])  # gloo takes no stacked output
        return collective(*args, **kwargs)

    return call
