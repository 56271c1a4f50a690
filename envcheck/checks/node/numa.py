"""A GPU belongs to one socket, and a process on the other one copies through the link between them.

Seen in the wild: a BIOS that reports no NUMA node for any GPU, so that no launcher can bind; all GPUs on one node of a
two-socket virtual machine; a job that was given a GPU of one socket and the CPUs of the other.
"""

from __future__ import annotations

from typing import Any, Final

from envcheck.checks import Check, Limit, Outcome, View, passed, skipped, undecided, warned
from envcheck.checks.node import _gpus, _visible
from envcheck.node.snapshot import UNREAD

CHECK = Check(
    promise="each GPU's NUMA node is known, and this process may use CPUs of it",
    level="quick",
    seconds=0.01,
    gpus=1,
    signals=("host.numa_nodes", "pci.gpus"),
)

_BIND: Final = (
    "have the launcher give CPUs beside the GPUs (Slurm: --gres-flags=enforce-binding; docker: --cpuset-cpus)"
)
_NEAR: Final = Limit(0, "GPUs", "Linux: sched_getaffinity(2) against each node's cpulist", "equal")
_LIMIT: Final = Limit(0, "GPUs", "Linux: numa_node is -1 where the firmware does not say", "equal")


def judge(view: View) -> Outcome:
    """Warn on a system of several nodes where a GPU has none, or none of its CPUs may be used by this process."""
    nodes, gpus = view.snapshot.signal("host.numa_nodes").value, view.snapshot.signal("pci.gpus").value
    if isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1:
        return undecided(f"host.numa_nodes is nonsense: {nodes!r}")
    if nodes == 1:
        return skipped("one NUMA node: every GPU is near")
    if not gpus:
        return skipped("the PCI bus shows no GPU here")
    unknown = [str(gpu["bus_id"]) for gpu in gpus if gpu["numa_node"] is None or gpu["numa_node"] < 0]
    if unknown:
        fix = "switch NUMA (not node interleaving) on in the BIOS; in a virtual machine pass the topology on"
        told = f"{len(unknown)} of {len(gpus)} GPUs have no NUMA node, on {nodes} nodes"
        return warned(told, fix=fix, value=len(unknown), unit="GPUs", limit=_LIMIT)
    far = _far(view, gpus)
    if far is not None:
        return far
    used = sorted({gpu["numa_node"] for gpu in gpus})
    return passed(f"GPUs on NUMA nodes {', '.join(map(str, used))} of {nodes}", value=0, unit="GPUs", limit=_LIMIT)


def _far(view: View, gpus: list[dict[str, Any]]) -> Outcome | None:
    """Return the outcome of GPUs whose node has no CPU for this process; None where each has, or nobody looked."""
    cpus = view.snapshot.signal("host.numa_cpus")
    if cpus.value is None:
        fix = "look at `lscpu` and /proc/self/status"
        return (
            None if cpus == UNREAD else undecided(f"the CPUs for this process cannot be told: {cpus.reason}", fix=fix)
        )
    far = _gpus.at(view, [gpu["bus_id"] for gpu in gpus if cpus.value.get(str(gpu["numa_node"])) == 0])
    mine = [uuid for uuid in far if uuid in _asked_for(view)]
    if not mine:
        return None
    told = f"{len(mine)} of {len(view.snapshot.gpus)} GPUs are on NUMA nodes of which this process may use no CPU"
    return warned(told, fix=_BIND, value=len(mine), unit="GPUs", limit=_NEAR, gpus=mine)


def _asked_for(view: View) -> list[str]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves this process."""
    uuids = [gpu.uuid for gpu in view.snapshot.gpus]
    environment = view.snapshot.signal("env").value or {}
    chosen = _visible.parse(environment.get("CUDA_VISIBLE_DEVICES"), uuids).chosen
    return [uuids[index] for index in chosen if isinstance(index, int)]
