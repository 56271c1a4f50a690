"""Ranks that work together: join, say truthfully which device that was, and judge whether all of them did."""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import functools
import math
import os
import platform
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Optional

from envcheck.checks import Measured, Outcome, Rank, Ranks, View, failed, skipped, undecided
from envcheck.checks.support import progress_file

# NCCL's own 10 to 30 minutes outlast every check's limit and hide which rank was stuck.
JOIN_SECONDS = 60
# The variable with the node's name in a group over several of them; hosts of containers may all be called localhost.
NODE_NAME = "ENVCHECK_NODE_NAME"

# What gloo does not have, by the words that PyTorch documents for it; any other exception is no lack but a fault.
# torch/csrc/distributed/c10d: Backend.hpp and ProcessGroup.hpp ("Backend gloo does not support ..."),
# ProcessGroupGloo.cpp ("ProcessGroupGloo does not support ...", "no support for ... in Gloo process group",
# "Cannot use ReduceOp.AVG with Gloo", "Invalid scalar type"); releases 1.13 to 2.13.
_GLOO_LACKS = re.compile(
    r"(Backend|ProcessGroup) ?gloo:? does not (yet )?support|no support for \w+ in gloo process group"
    r"|cannot use ReduceOp\.\w+ with gloo|^invalid scalar type",
    re.IGNORECASE,
)
# Modules that torch imports and whose package has the same name. (The package of the module yaml is PyYAML.)
_INSTALLED_BY_NAME = (
    "importlib_metadata|numpy|packaging|typing_extensions|sympy|networkx|jinja2|fsspec|filelock|setuptools"
)
_QUOTED = 300

Problem = Optional[Outcome]
Judge = Callable[[View, Ranks], Outcome]
_LEFT: list[Any] = []


def device_of(rank: Rank) -> Any:
    """Return the rank's torch device, made current."""
    import torch

    device = torch.device(rank.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # TF32 in a fp32 comparison would look like a broken GPU.
    torch.set_float32_matmul_precision("highest")
    return device


@contextlib.contextmanager
def group(rank: Rank) -> Iterator[Any]:
    """Join the process group and yield torch.distributed; left properly only on success (a broken one may hang).

    Ranks of one machine meet in a file, those of several over TCP: there torch looks up the name of every peer, which
    takes 10 s in a container without a working resolver. The check `torchrun` meets over TCP, as a user's ranks do.

    The group is left and not destroyed: its last collective's thread may still hold it, and a gloo thread that drops
    the last reference waits for itself ("Resource deadlock avoided", or for ever). The rank ends in a moment anyway.
    """
    import torch.distributed as dist

    timeout, scratch = dt.timedelta(seconds=JOIN_SECONDS), Path(rank.scratch)
    progress_file.write(scratch, rank.rank, progress_file.JOINING)
    dist.init_process_group(
        rank.backend, store=_store(dist, rank), rank=rank.rank, world_size=rank.world, timeout=timeout
    )
    with progress_file.followed(dist.group.WORLD, scratch, rank.rank):
        yield dist
    _LEFT.append(dist.group.WORLD)
    dist.destroy_process_group()


def _store(dist: Any, rank: Rank) -> Any:
    """Return a store in the group's own directory, over TCP for several nodes; None where files cannot be locked."""
    if rank.nodes > 1:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        return dist.TCPStore(address, port, rank.world, rank.rank == 0, dt.timedelta(seconds=JOIN_SECONDS))
    with Path(rank.scratch, f".lock{rank.rank}").open("w", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            return None
    return dist.FileStore(str(Path(rank.scratch, "store")), rank.world)


def host() -> str:
    """Return the name of this rank's machine, which no other machine of the group has."""
    return os.environ.get(NODE_NAME) or platform.node()


def standing(rank: Rank, tensor: Any, backend: str | None = None) -> Measured:
    """Return where a result was really computed, read off the tensor that holds it; never what was asked for."""
    return {
        "rank": rank.rank,
        "world": rank.world,
        "host": host(),
        "is_cuda": bool(tensor.is_cuda),
        "device": _device_identity(tensor),
        "backend": backend,
    }


def leave() -> None:
    """Take back what the runner says of the group: what is started here, as torchrun, would join it."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)


def _device_identity(tensor: Any) -> str:
    if not tensor.is_cuda:
        return "cpu"
    import torch

    uuid = str(getattr(torch.cuda.get_device_properties(tensor.device), "uuid", "") or "")
    if uuid:
        return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    # torch before 2.4 has no UUID: the index among the visible ones, which is as unique within a host.
    return f"{host()}/{os.environ.get('CUDA_VISIBLE_DEVICES', 'all')}/{tensor.device.index}"


def name(entry: Measured) -> str:
    """Return how a rank and its device are named."""
    return f"rank {entry['rank']} on {entry['device']}"


def sound(*, backend: bool = True, alone: str = "") -> Callable[[Judge], Judge]:
    """Let a judge see only results that prove something (see `problem`); `alone`: why one rank's prove nothing."""

    def guard(judge: Judge) -> Judge:
        @functools.wraps(judge)
        def guarded(view: View, ranks: Ranks) -> Outcome:
            unsound = problem(view, ranks, backend)
            if unsound is None and alone and len(ranks) == 1:
                return skipped(alone, code="rank.not-enough")
            return unsound or judge(view, ranks)

        return guarded

    return guard


def problem(view: View, ranks: Ranks, backend: bool = True) -> Problem:  # noqa: FBT001, FBT002 (py3.9, two callers)
    """Return why these results prove nothing: a rank is missing, ran elsewhere, or shared another's GPU."""
    return _missing(ranks) or _elsewhere(view, ranks, backend) or _shared(ranks)


def _missing(ranks: Ranks) -> Problem:
    if not ranks:
        fix = "see the log of the check's processes"
        return undecided("no rank reported anything", fix=fix, code="rank.none-reported")
    worlds: list[Any] = [entry.get("world") for entry in ranks]
    world = max((w for w in worlds if counts(w)), default=0)
    numbers = sorted(entry["rank"] for entry in ranks if counts(entry.get("rank")))
    if not world or any(w != world for w in worlds) or numbers != list(range(world)):
        return undecided(
            f"of {world} ranks these reported: {numbers or 'none'}",
            fix="see the log of the ranks that did not",
            code="rank.not-reported",
        )
    return None


def counts(value: Any) -> bool:
    """Return whether `value` is a number of things: no truth value, and not negative."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _elsewhere(view: View, ranks: Ranks, backend: bool) -> Problem:  # noqa: FBT001 (as above)
    gpu = view.mode == "gpu"
    for entry in ranks:
        who = f"rank {entry['rank']}"
        if not isinstance(entry.get("device"), str) or not entry["device"]:
            return undecided(f"{who} does not say on which device it was", code="rank.device-unknown", culprit=who)
        if entry.get("is_cuda") is not gpu:
            return failed(
                f"{who} computed on {entry.get('device')}, not on {'its GPU' if gpu else 'the CPU'}",
                fix="look for a CPU-only wheel (torch.version.cuda is None) or code that falls back to the CPU",
                code="rank.wrong-device",
                culprit=who,
            )
        expected = "nccl" if gpu else "gloo"
        if backend and entry.get("backend") != expected:
            return failed(
                f"{who} used backend {entry.get('backend')}, not {expected}",
                fix="install a torch built with NCCL; gloo moves every gradient through the host",
                code="rank.wrong-backend",
                culprit=who,
            )
    return None


def _shared(ranks: Ranks) -> Problem:
    owners: dict[str, int] = {}
    for entry in ranks:
        device = str(entry.get("device"))
        if entry["is_cuda"] and device in owners:
            return failed(
                f"ranks {owners[device]} and {entry['rank']} share GPU {device}",
                fix="give each rank its own GPU: torch.cuda.set_device(LOCAL_RANK), one CUDA_VISIBLE_DEVICES for all",
                code="rank.shared-gpu",
                culprit=device,
            )
        owners[device] = entry["rank"]
    return None


def finite(value: Any) -> bool:
    """Return whether `value` is a finite number: None, NaN (which JSON loses) and words are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def positive(value: Any) -> bool:
    """Return whether `value` is a finite number above 0."""
    return finite(value) and bool(value > 0)


def gloo_lacks(backend: str, error: BaseException) -> bool:
    """Return whether an exception is gloo saying that it does not have this operation or dtype."""
    return backend == "gloo" and bool(_GLOO_LACKS.search(str(error)))


def remedy(raised: object, otherwise: str) -> str:
    """Return what to do about a quoted exception: install the module that it misses, else `otherwise`.

    A part of a package, or a private module, is not there because what it belongs to is broken.
    """
    absent = re.search(rf"No module named '({_INSTALLED_BY_NAME})'", str(raised))
    return f"pip install {absent[1]}" if absent else otherwise


# What torch, cuBLAS, cuDNN and NCCL say where others hold the memory of a GPU.
OUT_OF_GPU_MEMORY = (
    r"CUDA out of memory|CUDA error: out of memory|Cuda failure 2 |CUDA calloc|CUDA malloc"
    r"|CU[A-Z]+_STATUS_(ALLOC_FAILED|NOT_INITIALIZED)|ALLOCATION_FAILED"
)


def quoted(error: BaseException) -> str:
    """Return an exception's type and first line."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:_QUOTED]
