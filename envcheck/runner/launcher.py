"""Which process of which group this is, and on which of how many nodes, as the launcher says in the environment.

Variables: torchrun (docs.pytorch.org, elastic/run), Slurm (srun(1), sbatch(1)), Open MPI (mpirun(1)), MPICH, Intel MPI
and MVAPICH (their Hydra launchers), Kubernetes' indexed Jobs, Kubeflow's PET_*.
"""

import math
import re
from collections.abc import Mapping
from typing import Final, Literal

import msgspec
from msgspec import structs

# Set by what started the ranks, and hardly exported by hand as RANK is: torchrun, srun, MPI, Kubernetes, DeepSpeed, and
# with the ranks' address whoever starts them by a script.
_MARKS: Final = (
    *("TORCHELASTIC_RUN_ID", "SLURM_STEP_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK"),
    *("JOB_COMPLETION_INDEX", "PET_NODE_RANK", "CROSS_RANK", "LOCAL_WORLD_SIZE", "LOCAL_SIZE", "MASTER_ADDR"),
)
Launcher = Literal["none", "torchrun", "slurm", "mpi", "kubernetes"]
_SLURM_NUMBERS: Final = (
    *("SLURM_LOCALID", "SLURM_NODEID", "SLURM_NNODES"),
    *("SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_ID"),
)
# An elastic job says how many nodes it may have: NNODES=1:4.
_RANGE: Final = re.compile(r"[0-9]+:[0-9]+")
_DIGITS: Final = 9
_MOST_NODES: Final = 1 << 17  # as fleet.hostlist: 4(x999999999) must not fill the memory
_TASK: Final = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's place among all, and among those of its node.

    `node` is the node's name as the launcher has it, "" where it gives none; `node_rank` its number, or its first
    rank's where the launcher numbers no nodes. `nodes` is how many there are, 0 for several that it does not count.
    """

    launcher: Launcher = "none"
    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    node: str = ""
    node_rank: int = 0
    nodes: int = 1

    @property
    def several_nodes(self) -> bool:
        """Tell whether other nodes take part."""
        return self.nodes != 1

    @property
    def possible(self) -> bool:
        """Tell whether its numbers agree with each other."""
        return 0 <= self.rank < self.world and 0 <= self.local_rank < self.local_world <= self.world


# The variables of rank and world, then of the rank's number on its node, of that node's ranks, of the node, and of the
# nodes, as far as a launcher says so. In this order: mpirun and torchrun may run inside a step of Slurm, whose
# variables their ranks inherit.
_STARTS: Final[tuple[tuple[Launcher, str], ...]] = (
    ("torchrun", "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE"),
    ("mpi", "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("mpi", "MV2_COMM_WORLD_RANK MV2_COMM_WORLD_SIZE MV2_COMM_WORLD_LOCAL_RANK MV2_COMM_WORLD_LOCAL_SIZE"),
    ("mpi", "PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS"),
    ("mpi", "PMI_RANK PMI_SIZE PMI_LOCAL_RANK PMI_LOCAL_SIZE"),
    ("slurm", "SLURM_PROCID SLURM_STEP_NUM_TASKS"),
    ("slurm", "SLURM_PROCID SLURM_NTASKS"),
    # One process a node: its number on the node is unknown.
    ("torchrun", "RANK WORLD_SIZE"),
    ("mpi", "PMI_RANK PMI_SIZE"),
    ("kubernetes", "JOB_COMPLETION_INDEX WORLD_SIZE"),
    ("kubernetes", "JOB_COMPLETION_INDEX NNODES"),
    ("kubernetes", "PET_NODE_RANK PET_NNODES"),
)


def place(environ: Mapping[str, str]) -> Place:
    """Return what the launcher says; without one, or where it contradicts itself, a group of one.

    A process of an allocation of several nodes that no launcher started, such as a batch script, is a group of one on
    a node of several. A group of one node, such as `srun -N4 torchrun --standalone`, is on the node of what is around.
    """
    launched, around = _from_environment(environ), _allocated(environ)
    if launched is None or not launched.possible or _left_behind(launched, environ):
        return around
    if launched.launcher == "slurm":
        return launched
    if launched.several_nodes:
        return structs.replace(launched, nodes=max(launched.nodes, _job_nodes(environ)))
    return structs.replace(launched, node_rank=around.node_rank, nodes=around.nodes)


def complaints(environ: Mapping[str, str]) -> list[str]:
    """Return what a launcher's variables say that cannot be, and that `place` therefore does not use."""
    named = (name for _, names in _STARTS for name in names.split())
    wrong = [
        f"{name}={environ[name]!r} is not a number that a launcher sets"
        for name in dict.fromkeys([*named, *_SLURM_NUMBERS])
        if environ.get(name) and _number(environ, name) is None and not _RANGE.fullmatch(environ[name])
    ]
    tasks = environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    if tasks and not all(map(_TASK.fullmatch, tasks.split(","))):
        wrong.append(f"SLURM_STEP_TASKS_PER_NODE={tasks!r} is not a list of numbers, such as 4(x2),1")
    launched = _from_environment(environ)
    if launched is not None and not launched.possible:
        ranks = f"rank {launched.rank} of {launched.world}, local rank {launched.local_rank} of {launched.local_world}"
        wrong.append(f"the variables of {launched.launcher} contradict each other: {ranks}")
    elif launched is not None and _left_behind(launched, environ):
        wrong.append(f"LOCAL_RANK={launched.local_rank} stands beside no variable of a launcher, such as {_MARKS[0]}")
    return wrong


def _left_behind(launched: Place, environ: Mapping[str, str]) -> bool:
    """Tell whether a shell still has the variables of some rank: nobody else checks this node."""
    return launched.launcher == "torchrun" and launched.local_rank > 0 and not any(name in environ for name in _MARKS)


def _from_environment(environ: Mapping[str, str]) -> Place | None:
    return next(filter(None, (_ranks(environ, *row) for row in _STARTS)), None)


def _ranks(environ: Mapping[str, str], launcher: Launcher, names: str) -> Place | None:
    said = names.split()
    rank, world, local, local_world, node_rank, nodes = [_number(environ, name) for name in [*said, *[""] * 4][:6]]
    if rank is None or world is None or (local is None and said[2:]):
        return None
    local = local or 0
    local_world = local_world or local + 1
    found = Place(
        launcher=launcher,
        rank=rank,
        world=world,
        local_rank=local,
        local_world=local_world,
        node=_node(environ),
        # A launcher that does not number its nodes numbers its ranks. A node's first rank is no other node's, also
        # where ranks go round (mpirun --map-by node) or nodes have different numbers of them.
        node_rank=rank - local if node_rank is None else node_rank,
        nodes=nodes or math.ceil(world / local_world),
    )
    return _in_slurm(found, environ) if launcher == "slurm" else found


def _in_slurm(found: Place, environ: Mapping[str, str]) -> Place | None:
    # Inside sbatch, but not started by srun: no rank of anything.
    if "SLURM_STEP_ID" not in environ and found.rank == 0:
        return None
    local, nodes = _number(environ, "SLURM_LOCALID") or 0, max(1, _job_nodes(environ))
    here = {"local_rank": local, "local_world": _tasks_here(environ) or local + 1}
    return structs.replace(found, **here, node_rank=_slurm_node(environ), nodes=nodes)


def _slurm_node(environ: Mapping[str, str]) -> int:
    """Return the node's number: in the step where that has several, else what tells steps or jobs of an array apart."""
    nodes = _number(environ, "SLURM_STEP_NUM_NODES") or _number(environ, "SLURM_NNODES") or 1
    if nodes > 1:
        return (_number(environ, "SLURM_ARRAY_TASK_ID") or 0) * nodes + (_number(environ, "SLURM_NODEID") or 0)
    names = ("SLURM_ARRAY_TASK_ID", "SLURM_STEP_ID", "SLURM_NODEID")
    return next((number for name in names if (number := _number(environ, name)) is not None), 0)


def _tasks_here(environ: Mapping[str, str]) -> int | None:
    """Return this node's number of SLURM_STEP_TASKS_PER_NODE, e.g. of "4(x2),1" on node 2: 1."""
    tasks: list[int] = []
    for part in environ.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        match = _TASK.fullmatch(part)
        if match is None:
            return None
        tasks += [int(match[1])] * min(int(match[2] or 1), _MOST_NODES - len(tasks))
    node = _number(environ, "SLURM_NODEID") or 0
    return tasks[node] if node < len(tasks) else None


def _allocated(environ: Mapping[str, str]) -> Place:
    index = _number(environ, "JOB_COMPLETION_INDEX")
    if index is not None:
        return Place(node=_node(environ), node_rank=index, nodes=0)
    pods = environ.get("PET_NNODES", "")
    if _RANGE.fullmatch(pods) or (_number(environ, "PET_NNODES") or 1) > 1:
        index = _number(environ, "PET_NODE_RANK") or 0
        return Place(node=_node(environ), node_rank=index, nodes=_number(environ, "PET_NNODES") or 0)
    nodes = max(1, _job_nodes(environ))
    return Place(node=_node(environ), node_rank=_slurm_node(environ), nodes=nodes) if nodes > 1 else Place()


def _job_nodes(environ: Mapping[str, str]) -> int:
    """Return on how many nodes Slurm runs the step, the job or the job's array: the steps of one job share a place."""
    names = ("SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_ARRAY_TASK_COUNT")
    return max(_number(environ, name) or 0 for name in names)


def _node(environ: Mapping[str, str]) -> str:
    return environ.get("SLURMD_NODENAME") or environ.get("NODE_NAME", "")


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else None
