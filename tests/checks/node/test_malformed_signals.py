"""No pass out of garbage: a signal whose value has not its shape was not read."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from envcheck.checks import PASS, View
from envcheck.node import collect
from envcheck.runner.judging import decide
from envcheck.runner.planning import discover

Node = Callable[..., View]
FOUND = {module.id: module for module in discover() if module.kind == "node"}
GARBAGE: list[Any] = ["", "banana", {}, {"a": 1}, [[]], [1], -1, -5.5, math.nan, True, 1e300]
OF_GPUS = {
    "throttle": "clock_reasons",
    "clocks": "clock_sm",
    "power-limit": "power_limit",
    "pcie-link": "pcie_width",
    "pcie-errors": "pcie_replays",
    "ecc": "ecc_volatile_uncorrected",
    "row-remap": "remapped_rows",
    "recovery-action": "recovery_action",
    "nvlink": "nvlinks",
    "nvlink-errors": "nvlink_errors",
    "fabric": "fabric",
    "mig": "mig_mode",
    "persistence": "persistence",
    "gpu-in-use": "memory_used",
    "host-memory": "memory_total",
}
OF_THE_NODE = {
    "xid": "kernel.xids",
    "sxid": "kernel.sxids",
    "stuck-processes": "host.stuck_processes",
    "nouveau": "host.gpu_modules",
    "numa": "host.numa_nodes",
    "open-files": "limits.nofile",
    "nvml-latency": "nvml.latency",
    "driver-nvml": "driver.library",
    "driver-cuda": "driver.version",
    "clock-sync": "clock.synchronized",
    "hugepages": "host.hugepages_free",
    "infiniband": "ib.ports",
    "acs": "pci.acs",
    "iommu": "pci.iommu",
    "container-toolkit": "toolkit.tools",
    "visible-devices": "env",
}


def seen(view: View) -> View:
    """Return what a run shows its judges of a view (Run.view)."""
    return dataclasses.replace(view, snapshot=collect.sound(view.snapshot))


def test_garbage_never_passes(node: Node, put: Node, put_gpu: Node) -> None:
    sound, fits = node("h100x8"), {**collect.NODE, **collect.GPU}
    views = [
        (check, name, value, put_gpu(sound, range(8), **{name: value}))
        for check, name in OF_GPUS.items()
        for value in GARBAGE
    ]
    views += [
        (check, name, value, put(sound, **{name: value})) for check, name in OF_THE_NODE.items() for value in GARBAGE
    ]
    passing = [
        (check, name, value)
        for check, name, value, view in views
        if not fits[name](value) and decide(FOUND[check], seen(view)).status == PASS
    ]
    assert passing == []


def test_the_sound_node_passes_what_garbage_does_not(node: Node) -> None:
    older = ("clock-sync", "hugepages", "infiniband", "acs", "iommu", "container-toolkit", "visible-devices")
    checks = [check for check in (*OF_GPUS, *OF_THE_NODE) if check not in older]
    assert {check: decide(FOUND[check], seen(node("h100x8"))).status for check in checks} == dict.fromkeys(checks, PASS)
