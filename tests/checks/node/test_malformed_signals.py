"""No pass out of garbage: a signal whose value has not its shape was not read."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from envcheck.checks import PASS, View
from envcheck.runner.judging import decide
from envcheck.runner.planning import discover
from tests.tables import each

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
}


@pytest.mark.parametrize("value", GARBAGE, ids=repr)
@pytest.mark.parametrize(("check", "name"), OF_GPUS.items())
def test_garbage_of_gpus_never_passes(node: Node, put_gpu: Node, check: str, name: str, value: Any) -> None:
    assert decide(FOUND[check], put_gpu(node("h100x8"), range(8), **{name: value})).status != PASS


@pytest.mark.parametrize("value", [g for g in GARBAGE if g != 1e300], ids=repr)
@pytest.mark.parametrize(("check", "name"), OF_THE_NODE.items())
def test_garbage_of_the_node_never_passes(node: Node, put: Node, check: str, name: str, value: Any) -> None:
    assert decide(FOUND[check], put(node("h100x8"), **{name: value})).status != PASS


@each("check, name", [*OF_GPUS.items(), *OF_THE_NODE.items()])
def test_the_sound_node_passes_what_garbage_does_not(node: Node, check: str, name: str) -> None:
    assert decide(FOUND[check], node("h100x8")).status == PASS, name
