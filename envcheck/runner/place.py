"""Which process of which group this is, as torchrun, Slurm and Kubernetes say it in the environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

Launcher = Literal["none", "torchrun", "slurm", "kubernetes"]


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's place among all, and among those of its node; `node` is its node's name as the launcher has it."""

    launcher: Launcher = "none"
    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    node: str = ""


def place(environ: Mapping[str, str]) -> Place:
    """Return what the launcher says; without one, or where it contradicts itself, a group of one."""
    found = _torchrun(environ) or _slurm(environ) or _kubernetes(environ) or Place()
    sane = 0 <= found.rank < found.world and 0 <= found.local_rank < found.local_world <= found.world
    return found if sane else Place()


def _torchrun(environ: Mapping[str, str]) -> Place | None:
    rank, world = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
    if rank is None or world is None:
        return None
    local, local_world = _number(environ, "LOCAL_RANK"), _number(environ, "LOCAL_WORLD_SIZE")
    return Place(
        launcher="torchrun", rank=rank, world=world, local_rank=local or 0, local_world=local_world or (local or 0) + 1
    )


def _slurm(environ: Mapping[str, str]) -> Place | None:
    rank, world = _number(environ, "SLURM_PROCID"), _number(environ, "SLURM_NTASKS")
    if rank is None or world is None or "SLURM_STEP_ID" not in environ:
        return None  # inside sbatch, but not started by srun: no rank of anything
    local = _number(environ, "SLURM_LOCALID") or 0
    return Place(
        launcher="slurm",
        rank=rank,
        world=world,
        local_rank=local,
        local_world=_tasks_here(environ) or local + 1,
        node=environ.get("SLURMD_NODENAME", ""),
    )


def _tasks_here(environ: Mapping[str, str]) -> int | None:
    """Return this node's number of SLURM_STEP_TASKS_PER_NODE, e.g. of "4(x2),1" on node 2: 1."""
    tasks: list[int] = []
    for part in environ.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        count, _, times = part.rstrip(")").partition("(x")
        if not count.isdigit() or not (times or "1").isdigit():
            return None
        tasks += [int(count)] * int(times or 1)
    node = _number(environ, "SLURM_NODEID") or 0
    return tasks[node] if node < len(tasks) else None


def _kubernetes(environ: Mapping[str, str]) -> Place | None:
    # An indexed Job numbers its pods; how many there are it does not say, so WORLD_SIZE or NNODES must.
    rank = _number(environ, "JOB_COMPLETION_INDEX")
    world = _number(environ, "WORLD_SIZE") or _number(environ, "NNODES")
    if rank is None or world is None:
        return None
    return Place(launcher="kubernetes", rank=rank, world=world, node=environ.get("NODE_NAME", ""))


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if text.isdigit() else None
