"""A GPU belongs to one socket, and a process on the other one copies through the link between them.

Seen in the wild: a BIOS that reports no NUMA node for any GPU, so that no launcher can bind; all GPUs on one node of a
two-socket virtual machine.
"""

from __future__ import annotations

from typing import Final

from envcheck.checks import Check, Limit, Outcome, View, passed, skipped, undecided, warned

CHECK = Check(
    promise="the system knows to which NUMA node each GPU belongs",
    level="quick",
    seconds=0.01,
    gpus=1,
    signals=("host.numa_nodes", "pci.gpus"),
)

_LIMIT: Final = Limit(0, "GPUs", "Linux: numa_node is -1 where the firmware does not say", "equal")


def judge(view: View) -> Outcome:
    """Warn on a system of several nodes where a GPU has none; with one node there is nothing to get wrong."""
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
    used = sorted({gpu["numa_node"] for gpu in gpus})
    return passed(f"GPUs on NUMA nodes {', '.join(map(str, used))} of {nodes}", value=0, unit="GPUs", limit=_LIMIT)
