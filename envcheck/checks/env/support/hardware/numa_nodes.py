"""NUMA nodes as this process may use them: run on one, and find the one that a GPU hangs on."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from envcheck.checks import View

NODES = Path("/sys/devices/system/node")


def cpus(text: str) -> set[int]:
    """Return the CPUs of a kernel list such as "0-3,8". Raises ValueError on anything else."""
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


def nodes(root: Path = NODES) -> dict[str, set[int]]:
    """Return the CPUs of each NUMA node that has any, by the node's number; {} where the kernel does not say."""
    cpus = {node.name[4:]: _cpus_of(node) for node in sorted(root.glob("node[0-9]*"))}
    return {number: those for number, those in cpus.items() if those}


def _cpus_of(node: Path) -> set[int]:
    try:
        return cpus((node / "cpulist").read_text())
    except (OSError, ValueError):  # a kernel that hides it: not a node to run on
        return set()


@contextlib.contextmanager
def on(those: set[int]) -> Iterator[None]:
    """Run on these CPUs only, so that memory is taken from their node. Raises OSError where they are not allowed."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, those)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def nearest(view: View, uuid: str) -> str | None:
    """Return the NUMA node of this GPU's slot as the node's snapshot has it; None where it does not say."""
    bus = next((gpu.signal("bus_id").value for gpu in view.snapshot.gpus if gpu.uuid == uuid), None)
    slots: Any = view.snapshot.signal("pci.gpus").value
    for slot in slots if isinstance(slots, list) and isinstance(bus, str) else []:
        # NVML writes eight digits of the PCI domain, Linux four.
        if isinstance(slot, dict) and str(slot.get("bus_id")).lower() == str(bus).lower()[-12:]:
            node = slot.get("numa_node")
            return str(node) if isinstance(node, int) and node >= 0 else None
    return None
