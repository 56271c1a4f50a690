"""A GPU belongs to one socket, and a process on the other one copies through the link between them.

Seen in the wild: a BIOS that reports no NUMA node for any GPU, so that no launcher can bind; all GPUs on one node of a
two-socket virtual machine; a job that was given a GPU of one socket and the CPUs of the other.
"""

from __future__ import annotations

from typing import Any, Final

from envcheck.checks import Check, Limit, Outcome, View, passed, skipped, undecided, warned, worst
from envcheck.checks.readings import gpu_readings, visible_gpus

CHECK = Check(
    promise="each GPU's NUMA node is known, and this process may use CPUs of it",
    level="quick",
    seconds=0.01,
    gpus=1,
)

_BIND: Final = (
    "have the launcher give CPUs beside the GPUs (Slurm: --gres-flags=enforce-binding; docker: --cpuset-cpus)"
)
_NEAR: Final = Limit(0, "GPUs", "Linux: sched_getaffinity(2) against each node's cpulist", "equal")
_LIMIT: Final = Limit(0, "GPUs", "Linux: numa_node is -1 where the firmware does not say", "equal")


def judge(view: View) -> Outcome:
    """Warn on a system of several nodes where a GPU has none, or none of its CPUs may be used by this process."""
    unread = _unread(view)
    if unread is not None:
        return unread
    nodes, gpus = view.snapshot.signal("host.numa_nodes").value, view.snapshot.signal("pci.gpus").value
    if isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1:
        return undecided(f"host.numa_nodes has an unexpected type or value: {nodes!r}", code="numa.unexpected-value")
    if nodes == 1:
        return skipped("one NUMA node: every GPU is near", code="numa.one-node")
    if not gpus:
        return skipped("the PCI bus shows no GPU here", code="pci.no-gpu")
    unknown = [str(gpu["bus_id"]) for gpu in gpus if gpu["numa_node"] is None or gpu["numa_node"] < 0]
    findings = [_unknown(view, bus_id, nodes) for bus_id in unknown] + _far(view, gpus)
    used = sorted({gpu["numa_node"] for gpu in gpus if gpu["numa_node"] is not None})
    sound = passed(f"GPUs on NUMA nodes {', '.join(map(str, used))} of {nodes}", value=0, unit="GPUs", limit=_LIMIT)
    return worst(findings, sound)


def _unread(view: View) -> Outcome | None:
    """Return the skip where a kernel or sandbox has no such files, the error where they cannot be read; else None."""
    for name in ("host.numa_nodes", "pci.gpus"):
        signal = view.snapshot.signal(name)
        if signal.why == "unsupported":
            return skipped(
                f"this system does not show its NUMA nodes and PCI bus ({signal.reason})", code="numa.hidden"
            )
        if signal.reason is not None:
            return undecided(f"{name}: {signal.reason}", fix="run where /sys can be read", code="numa.unread")
    return None


def _unknown(view: View, bus_id: str, nodes: int) -> Outcome:
    return warned(
        f"the GPU at {bus_id} has no NUMA node, on {nodes} nodes",
        fix="switch NUMA (not node interleaving) on in the BIOS; in a virtual machine pass the topology on",
        value=1,
        unit="GPUs",
        limit=_LIMIT,
        code="numa.unknown",
        culprit=gpu_readings.place(view, bus_id),
        gpus=gpu_readings.at(view, [bus_id]),
    )


def _far(view: View, gpus: list[dict[str, Any]]) -> list[Outcome]:
    """Return one warning for each GPU of this process whose node has no CPU for it; none where nobody looked."""
    cpus = view.snapshot.signal("host.numa_cpus")
    if cpus.value is None:
        fix, text = "look at `lscpu` and /proc/self/status", f"undetermined: the CPUs of this process: {cpus.reason}"
        return [] if cpus.why == "not-collected" else [undecided(text, fix=fix, code="numa.cpus-unread")]
    reported = _asked_for(view)
    places = [(gpu, gpu_readings.at(view, [gpu["bus_id"]])) for gpu in gpus]
    return [
        warned(
            f"{gpu_readings.place(view, gpu['bus_id'])}: this process may use no CPU of its NUMA node "
            f"{gpu['numa_node']}",
            fix=_BIND,
            value=1,
            unit="GPUs",
            limit=_NEAR,
            code="numa.far",
            culprit=gpu_readings.place(view, gpu["bus_id"]),
            gpus=uuids,
        )
        for gpu, uuids in places
        if cpus.value.get(str(gpu["numa_node"])) == 0 and set(uuids) & set(reported)
    ]


def _asked_for(view: View) -> list[str]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves this process."""
    uuids = [gpu.uuid for gpu in view.snapshot.gpus]
    environment = view.snapshot.signal("env").value or {}
    chosen = visible_gpus.parse(environment.get("CUDA_VISIBLE_DEVICES"), uuids).chosen
    return [uuids[index] for index in chosen if isinstance(index, int)]
