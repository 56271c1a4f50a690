"""Which node of a group this process is, and where the group meets, as its launcher says in the environment. Pure."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import Final, NamedTuple

from envcheck.errors import ConfigError
from envcheck.fleet.hostlist import MOST, is_name, unfold
from envcheck.runner.launcher import Place, complaints, place

# As torchrun's own default (docs.pytorch.org, elastic/run).
DEFAULT_PORT: Final = 29500
# Where the port is drawn from the job's number: below the ports that Linux gives to outgoing connections.
_DRAWN: Final = range(20000, 30000)
_LAST_PORT: Final = 65535
_HOST: Final = re.compile(r"[A-Za-z0-9._:%-]+")
_START: Final = "start one process a node: srun --ntasks-per-node=1, torchrun --nnodes=N, or an indexed Job with NNODES"


class Membership(NamedTuple):
    """Node number `node` of `nodes`, the first of which listens at `address` and `port`.

    `names` are those of all nodes where the launcher lists them, else empty; `name` is this one's, "" where it gives
    none. `processes` is how many processes the launcher starts on this node. `run` tells groups apart, "" where nothing
    does.
    """

    node: int
    nodes: int
    name: str
    names: tuple[str, ...]
    processes: int
    address: str
    port: int
    run: str

    @property
    def described(self) -> str:
        """Return the number, the run and the meeting point in words."""
        run = f", run {self.run}" if self.run else ""
        return f"number {self.node} of {self.nodes} nodes{run}; they meet at {self.address} port {self.port}"


def membership(
    environ: Mapping[str, str], address: str | None = None, port: int | None = None, run: str | None = None
) -> Membership:
    """Return what the environment says; what is given goes before it.

    Raise ConfigError where it contradicts itself, or where it names one node, or no first one.
    """
    for complaint in complaints(environ):
        raise ConfigError(complaint, fix="correct the variable, or unset it")
    launch = place(environ)
    node, nodes = _counted(launch, environ)
    if nodes < 2:  # noqa: PLR2004 (a group)
        message = "the environment names no group of several nodes"
        raise ConfigError(message, fix=_START)
    if node >= nodes:
        message = f"this node is number {node} of {nodes}, counted from 0"
        raise ConfigError(message, fix=_START)
    if nodes > MOST:
        message = f"the environment names more than {MOST:,} nodes"
        raise ConfigError(message, fix=_START)
    names = _names(launch, environ, nodes)
    name = launch.node or (names[node] if names else "")
    if name and not is_name(name):
        message = f"this node's name {name[:60]!r} is not a node's name"
        raise ConfigError(message, fix="correct NODE_NAME or SLURMD_NODENAME: letters, digits, dots and dashes")
    return Membership(
        node=node,
        nodes=nodes,
        name=name,
        names=names,
        processes=launch.local_world,
        address=_host(address or _address(environ, names)),
        port=port or _port(launch, environ),
        run=run or _run(launch, environ),
    )


def _counted(launch: Place, environ: Mapping[str, str]) -> tuple[int, int]:
    """Return this node's number and how many nodes take part: of the step or group, not of the job around it."""
    if launch.launcher == "slurm":
        return int(environ.get("SLURM_NODEID") or 0), int(environ.get("SLURM_STEP_NUM_NODES") or launch.nodes)
    if launch.launcher == "mpi" and launch.local_world > 1:
        message = "MPI numbers ranks and no nodes"
        raise ConfigError(message, fix="start one process a node: mpirun --map-by ppr:1:node")
    if launch.launcher == "none":
        return 0, 1
    nodes = int(environ.get("GROUP_WORLD_SIZE") or 0) if launch.launcher == "torchrun" else 0
    return launch.node_rank, nodes or -(-launch.world // launch.local_world)


def _names(launch: Place, environ: Mapping[str, str], nodes: int) -> tuple[str, ...]:
    listed = environ.get("SLURM_STEP_NODELIST", "") if launch.launcher == "slurm" else ""
    names = tuple(unfold(listed)) if listed else ()
    return names if len(names) == nodes else ()


def _address(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    address = environ.get("MASTER_ADDR") or environ.get("PET_MASTER_ADDR") or (names[0] if names else "")
    if not address:
        message = "no variable names the first node"
        raise ConfigError(message, fix="set MASTER_ADDR to a name or address of it that the other nodes can reach")
    return address


def _host(address: str) -> str:
    if not _HOST.fullmatch(address):
        message = f"the address of the first node {address[:60]!r} is not a host name or an IP address"
        raise ConfigError(message, fix="correct --master-addr or MASTER_ADDR")
    return address


def _port(launch: Place, environ: Mapping[str, str]) -> int:
    name = next((name for name in ("MASTER_PORT", "PET_MASTER_PORT") if environ.get(name)), "")
    if not name:
        step = _run(launch, environ)
        return _DRAWN[zlib.crc32(step.encode()) % len(_DRAWN)] if step else DEFAULT_PORT
    text = environ[name]
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= _LAST_PORT):
        message = f"{name}={text[:40]!r} is not a port"
        raise ConfigError(message, fix=f"set it to a number from 1 to {_LAST_PORT}, the same on all nodes")
    # torchrun's own store listens at MASTER_PORT.
    taken = launch.launcher == "torchrun" and "TORCHELASTIC_RUN_ID" in environ
    return int(text) + (1 if int(text) < _LAST_PORT else -1) if taken else int(text)


def _run(launch: Place, environ: Mapping[str, str]) -> str:
    """Return what tells this start apart from others: Slurm's job and step, torchrun's run."""
    if launch.launcher == "slurm":
        return f"{environ.get('SLURM_JOB_ID', '')}.{environ.get('SLURM_STEP_ID', '')}"
    run = environ.get("TORCHELASTIC_RUN_ID", "")
    return "" if run == "none" else run
