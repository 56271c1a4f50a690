"""Which node of a group this process is and where the group meets, and whether nodes can be one group. Pure."""

import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from envcheck.counting import counted, printable
from envcheck.errors import refuse
from envcheck.fleet.hostlist import MOST, fold, is_name, unfold
from envcheck.runner.launcher import Place, complaints, place

# As torchrun's own default (docs.pytorch.org, elastic/run).
DEFAULT_PORT: Final = 29500
# Where the port is drawn from the job's number: below the ports that Linux gives to outgoing connections.
_DRAWN: Final = range(20000, 30000)
_LAST_PORT: Final = 65535
_START: Final = "start one process a node: srun --ntasks-per-node=1, torchrun --nnodes=N, or an indexed Job with NNODES"


class Membership(NamedTuple):
    """Node `node` of `nodes`, and where they meet; `names` are of all where the launcher lists them."""

    node: int
    nodes: int
    name: str
    names: tuple[str, ...]
    processes: int
    address: str
    port: int
    run: str


def membership(environ: Mapping[str, str], run: str | None = None) -> Membership:
    """Return what the environment says, or raise ConfigError; a `run` that is given goes before it."""
    for complaint in complaints(environ):
        refuse(complaint, "correct the variable, or unset it")
    launch = place(environ)
    node, nodes = _counted(launch, environ)
    if nodes < 2:  # noqa: PLR2004 (a group)
        refuse("the environment names no group of several nodes", _START)
    if node >= nodes:
        refuse(f"this node is number {node} of {nodes}, counted from 0", _START)
    if nodes > MOST:
        refuse(f"the environment names more than {MOST:,} nodes", _START)
    listed = environ.get("SLURM_STEP_NODELIST", "") if launch.launcher == "slurm" else ""
    names = tuple(unfold(listed)) if listed and nodes == len(unfold(listed)) else ()
    name = launch.node or (names[node] if names else "")
    if name and not is_name(name):
        fix = "correct NODE_NAME or SLURMD_NODENAME: letters, digits, dots and dashes"
        refuse(f"this node's name {name[:60]!r} is not a node's name", fix)
    address = environ.get("MASTER_ADDR") or environ.get("PET_MASTER_ADDR") or (names[0] if names else "")
    if not address:
        refuse("no variable names the first node", "set MASTER_ADDR to its name or address as the other nodes have it")
    if not re.fullmatch(r"[A-Za-z0-9._:%-]+", address):
        refuse(f"the first node's address {address[:60]!r} is not a host name or an IP address", "correct MASTER_ADDR")
    return Membership(
        node=node,
        nodes=nodes,
        name=name,
        names=names,
        processes=launch.local_world,
        address=address,
        port=_port(launch, environ),
        run=run or _run(launch, environ),
    )


def _counted(launch: Place, environ: Mapping[str, str]) -> tuple[int, int]:
    """Return this node's number and how many nodes take part: of the step or group, not of the job around it."""
    if launch.launcher == "slurm":
        return int(environ.get("SLURM_NODEID") or 0), int(environ.get("SLURM_STEP_NUM_NODES") or launch.nodes)
    if launch.launcher == "mpi" and launch.local_world > 1:
        refuse("MPI numbers ranks and no nodes", "start one process a node: mpirun --map-by ppr:1:node")
    if launch.launcher == "none":
        return 0, 1
    nodes = int(environ.get("GROUP_WORLD_SIZE") or 0) if launch.launcher == "torchrun" else 0
    return launch.node_rank, nodes or -(-launch.world // launch.local_world)


def _port(launch: Place, environ: Mapping[str, str]) -> int:
    name = next((name for name in ("MASTER_PORT", "PET_MASTER_PORT") if environ.get(name)), "")
    if not name:
        step = _run(launch, environ)
        return _DRAWN[zlib.crc32(step.encode()) % len(_DRAWN)] if step else DEFAULT_PORT
    text = environ[name]
    if not (text.isascii() and text.isdigit() and 0 < int(text[:9]) <= _LAST_PORT):
        refuse(f"{name}={text[:40]!r} is not a port", f"set a number from 1 to {_LAST_PORT}, the same on all nodes")
    # torchrun's own store listens at MASTER_PORT.
    taken = launch.launcher == "torchrun" and "TORCHELASTIC_RUN_ID" in environ
    return int(text) + (1 if int(text) < _LAST_PORT else -1) if taken else int(text)


def _run(launch: Place, environ: Mapping[str, str]) -> str:
    """Return what tells this start apart from others: Slurm's job and step, torchrun's run."""
    if launch.launcher == "slurm":
        return f"{environ.get('SLURM_JOB_ID', '')}.{environ.get('SLURM_STEP_ID', '')}"
    run = environ.get("TORCHELASTIC_RUN_ID", "")
    return "" if run == "none" else run


_MOST_NAMED: Final = 8


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """A node's first message. `plan` is what it will measure, as text."""

    run: str
    node: int
    nodes: int
    name: str
    tool: str
    plan: str


def refusal(first: Hello, hello: Hello, came: Mapping[int, Hello]) -> str:
    """Return why no group can be of the first node, those that came, and one of the same run; "" where it can."""
    name, first_name = short(hello.name), short(first.name)
    started = counted(hello.nodes, "node")
    other = short(came[hello.node].name) if hello.node in came else ""
    faults = (
        (hello.nodes != first.nodes, f"{name} was started for {started}, and {first_name} for {first.nodes}"),
        (not 0 <= hello.node < first.nodes, f"{name} is number {hello.node} of {first.nodes} nodes, counted from 0"),
        (hello.node in came, f"{other} and {name} are both number {hello.node}"),
        (hello.name in {one.name for one in came.values()}, f"two nodes are called {name}"),
        (hello.tool != first.tool, f"{name} has envcheck {short(hello.tool)}, and {first_name} {short(first.tool)}"),
        (hello.plan != first.plan, f"{name} is to measure {short(hello.plan)}, and {first_name} {short(first.plan)}"),
    )
    return next((why for fault, why in faults if fault), "")


def missing(nodes: int, names: Sequence[str], came: Mapping[int, Any], seconds: float) -> str:
    """Return which nodes did not come, by name where the launcher lists them, else by number."""
    absent = [node for node in range(nodes) if node not in came]
    numbers = ", ".join(map(str, absent[:_MOST_NAMED])) + (" and others" if len(absent) > _MOST_NAMED else "")
    who = fold([names[node] for node in absent]) if names else f"number {numbers} (counted from 0)"
    return f"{len(came)} of {nodes} nodes came within {seconds:g} s; missing: {who}"


def differences(facts: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> str:
    """Return in which of the facts called `names` nodes differ, as one line; "" where they are alike."""
    for name in names:
        nodes: dict[str, list[str]] = {}
        for node, own in facts.items():
            nodes.setdefault(str(own.get(name)), []).append(node)
        if len(nodes) > 1:
            return f"{name} differs: " + ", ".join(f"{short(value)} on {fold(who)}" for value, who in nodes.items())
    return ""


def short(text: str) -> str:
    """Return what a node says in a length and with characters that a line can hold."""
    return " ".join(printable(text[:120]).split())
