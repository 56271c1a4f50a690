"""Drain and resume a node in Slurm: never over another's reason, and never more of a partition than a limit."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from envcheck.counting import counted
from envcheck.node.subprocesses import output

# How the reason of a node begins that envcheck drained.
OWN: Final = "envcheck: "
# Seconds for each answer of the controller: a prolog waits for it.
SECONDS: Final = 5.0
_LINE: Final = "%N|%P|%T|%E"


class SlurmNode(NamedTuple):
    """A node in a partition; `reason` is why it takes no jobs, "none" where it does."""

    name: str
    partition: str
    state: str
    reason: str


def drain(node: str, reason: str, percent: float) -> str:
    """Drain a node; return "", or why it was left as it is. Raises OSError where Slurm does not answer.

    The nodes are counted again afterwards: of many that fail in the same moment, those that went over the limit take
    it back, so that never more than the limit stay drained. What somebody else has drained meanwhile stays so.
    """
    rows = nodes()
    drained = next((row for row in rows if row.name == node and "drain" in row.state), None)
    if drained is not None:
        return "" if drained.reason.startswith(OWN) else f"it is drained already: {drained.reason}"
    refused = over_limit(rows, node, percent, 1)
    if not refused:
        _tool("scontrol", "update", f"nodename={node}", "state=drain", f"reason={reason}")
        after = nodes()
        refused = over_limit(after, node, percent, 0)
        if refused and all(row.reason == reason.strip() for row in after if row.name == node):
            _tool("scontrol", "update", f"nodename={node}", "state=resume")
    return refused


def resume(node: str) -> str:
    """Resume a node that envcheck drained; return "", or why nothing was done. Raises OSError as `drain` does."""
    here = next((row for row in nodes() if row.name == node), None)
    if here is None:
        return f"Slurm knows no node {node}; give its name in SLURMD_NODENAME"
    if not here.reason.startswith(OWN):
        why = f": {here.reason}" if "drain" in here.state else ", envcheck did not drain it"
        return f"it is {here.state}{why}"
    _tool("scontrol", "update", f"nodename={node}", "state=resume")
    return ""


def over_limit(rows: Sequence[SlurmNode], node: str, percent: float, more: int) -> str:
    """Return why a partition of the node would have too many nodes that envcheck drained, with `more`; "" if none."""
    for partition in sorted({row.partition for row in rows if row.name == node}):
        members = [row for row in rows if row.partition == partition]
        drained = sum(row.reason.startswith(OWN) and (not more or row.name != node) for row in members)
        if drained + more > max(1, int(len(members) * percent / 100)):
            counts = f"{drained} of the {counted(len(members), 'node')} of partition {partition}"
            return f"envcheck has drained {counts}, and --max-drained is {percent:g} %: look at these first"
    return ""


def nodes() -> list[SlurmNode]:
    """Return the nodes of all partitions, a node in two of them twice."""
    text = _tool("sinfo", "--all", "--Node", "--noheader", f"--format={_LINE}")
    rows = (line.strip().split("|", 3) for line in text.splitlines())
    whole = [row for row in rows if len(row) == len(SlurmNode._fields)]
    return [SlurmNode(name, partition.rstrip("*"), state, reason) for name, partition, state, reason in whole]


def _tool(name: str, *arguments: str) -> str:
    program = shutil.which(name)
    if program is None:
        raise FileNotFoundError(0, f"{name} is not on PATH")
    try:
        return output(Path(program), *arguments, timeout=SECONDS)
    except OSError as error:
        raise OSError(0, f"{name}: {error.strerror or error}") from error
