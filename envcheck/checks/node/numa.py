"""A GPU belongs to one socket, and a process on the other one copies through the link between them."""

from typing import Any

from envcheck.checks import ERROR, Check, Limit, Outcome, View, passed, skipped, warned, worst
from envcheck.checks.gpu_readings import Rule, at, place, unreadable
from envcheck.checks.node.visible_devices import NAME, parse

CHECK = Check("each GPU's NUMA node is known, and this process may use CPUs of it", "quick", 0.01, gpus=1)

_NEAR = Limit(0, "GPUs", "Linux: sched_getaffinity(2) against each node's cpulist", "equal")
_LIMIT = Limit(0, "GPUs", "Linux: numa_node is -1 where the firmware does not say", "equal")
_SHOW = "switch NUMA (not node interleaving) on in the BIOS; in a virtual machine pass the topology on"
_BIND = "have the launcher give CPUs beside the GPUs (Slurm: --gres-flags=enforce-binding; docker: --cpuset-cpus)"


def judge(view: View) -> Outcome:
    """Warn on a system of several nodes where a GPU has none, or none of its CPUs may be used by this process."""
    for name in ("host.numa_nodes", "pci.gpus"):
        missing = unreadable(view, name, "run where /sys can be read", ("unsupported",))
        if missing is not None:
            return missing
    nodes, gpus = view.snapshot.signal("host.numa_nodes").value, view.snapshot.signal("pci.gpus").value
    if nodes <= 1:
        return skipped("one NUMA node: every GPU is near", code="numa.one-node")
    if not gpus:
        return skipped("the PCI bus shows no GPU here", code="pci.no-gpu")
    rule = Rule(warned, "numa.unknown", f"the GPU at {{gpu}} has no NUMA node, on {nodes} nodes", _SHOW, _LIMIT)
    unknown = [gpu["bus_id"] for gpu in gpus if gpu["numa_node"] is None or gpu["numa_node"] < 0]
    used = sorted({gpu["numa_node"] for gpu in gpus if gpu["numa_node"] is not None})
    sound = passed(f"GPUs on NUMA nodes {', '.join(map(str, used))} of {nodes}", value=0, limit=_LIMIT)
    return worst([*(rule.at(view, bus_id) for bus_id in unknown), *_far(view, gpus)], sound)


def _far(view: View, gpus: list[dict[str, Any]]) -> list[Outcome]:
    cpus = view.snapshot.signal("host.numa_cpus")
    if cpus.value is None:
        unread = unreadable(view, "host.numa_cpus", "look at `lscpu` and /proc/self/status", ())
        return [unread] if unread and unread.status == ERROR else []
    uuids = [gpu.uuid for gpu in view.snapshot.gpus]
    chosen = parse((view.snapshot.signal("env").value or {}).get(NAME), uuids).chosen
    own, findings = {uuids[index] for index in chosen if isinstance(index, int)}, []
    for gpu in gpus:
        bus_id, node = gpu["bus_id"], gpu["numa_node"]
        if cpus.value.get(str(node)) == 0 and own & set(at(view, [bus_id])):
            text = f"{place(view, bus_id)}: this process may use no CPU of its NUMA node {node}"
            findings.append(Rule(warned, "numa.far", text, _BIND, _NEAR).at(view, bus_id))
    return findings
