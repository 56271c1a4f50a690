"""How a node is set up: modes, models, modules, and what the PCI bus has that NVML has not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from envcheck.checks import ERROR, FAIL, PASS, SKIP, WARN, View
from envcheck.checks.node import (
    compute_mode,
    ecc,
    gpu_in_use,
    gpu_lost,
    kernel_module,
    mig,
    numa,
    one_model,
    persistence,
)
from envcheck.node.snapshot import Signal
from tests.tables import each

Node = Callable[..., View]
UNREAD = Signal(reason="NVML: Unknown Error", why="failed")
GIB = 1 << 30


@each(
    "judge, name",
    [
        (persistence.judge, "persistence"),
        (mig.judge, "mig_mode"),
        (compute_mode.judge, "compute_mode"),
        (gpu_in_use.judge, "memory_used"),
        (one_model.judge, "name"),
        (kernel_module.judge, "compute_capability"),
    ],
)
def test_what_cannot_be_read_is_an_error(node: Node, put_gpu: Node, judge: Callable[[View], Any], name: str) -> None:
    assert judge(put_gpu(node("h100x8"), [0], **{name: UNREAD})).status == ERROR


def test_persistence_matters_on_datacentre_gpus(node: Node, put_gpu: Node) -> None:
    assert persistence.judge(node("h100x8")).status == PASS
    outcome = persistence.judge(put_gpu(node("h100x8"), [2], persistence="off"))
    assert outcome.status == WARN
    assert "GPU 2" in outcome.summary
    assert persistence.judge(put_gpu(node("rtx4090"), [0], persistence="off")).status == PASS


def test_mig_on_some_gpus_only_is_a_warning(node: Node, put_gpu: Node) -> None:
    assert mig.judge(node("h100x8")).status == PASS
    assert mig.judge(node("rtx4090")).status == PASS
    assert mig.judge(node("mig")).value == "on"
    outcome = mig.judge(put_gpu(node("a100x8"), [7], mig_mode="on"))
    assert (outcome.status, outcome.value) == (WARN, "on")
    assert outcome.culprit.startswith("GPU 7 (")


@each("mode, status", [("default", PASS), ("exclusive process", WARN), ("prohibited", FAIL)])
def test_a_gpu_that_turns_processes_away(node: Node, put_gpu: Node, mode: str, status: str) -> None:
    assert compute_mode.judge(put_gpu(node("h100x8"), [1], compute_mode=mode)).status == status


@each("used, status", [(2 * GIB, PASS), (2 * GIB + 1, WARN)])
def test_memory_that_somebody_holds(node: Node, put_gpu: Node, used: int, status: str) -> None:
    processes = [{"pid": 4711, "memory": used}]
    outcome = gpu_in_use.judge(put_gpu(node("h100x8"), [5], memory_used=used, processes=processes))
    assert outcome.status == status
    assert "4711" in outcome.summary


def test_holders_in_another_container_are_said_to_be_hidden(node: Node, put_gpu: Node) -> None:
    outcome = gpu_in_use.judge(put_gpu(node("h100x8"), [5], memory_used=70 * GIB))
    assert "not shown here" in outcome.summary


@each(
    "change, status",
    [
        ({}, PASS),
        ({"name": "NVIDIA A100-SXM4-40GB"}, WARN),
        ({"memory_total": 40 * GIB}, WARN),
        ({"memory_total": 80 * GIB - (GIB >> 1)}, PASS),
        ({"vbios": "96.00.61.00.01"}, WARN),
        ({"clock_sm_max": 1755}, WARN),
    ],
)
def test_the_odd_gpu_is_named(node: Node, put_gpu: Node, change: dict[str, Any], status: str) -> None:
    outcome = one_model.judge(put_gpu(node("h100x8"), [3], **change))
    assert outcome.status == status
    if status == WARN:
        assert "GPU 3" in outcome.summary


def test_one_gpu_is_like_itself(node: Node) -> None:
    assert one_model.judge(node("rtx4090")).status == SKIP


@each(
    "name, capability, flavour, status",
    [
        ("Tesla V100-SXM2-32GB", "7.0", "proprietary", PASS),
        ("Tesla V100-SXM2-32GB", "7.0", "open", WARN),
        ("Tesla T4", "7.5", "open", PASS),
        ("Tesla T4", "7.5", "proprietary", PASS),
        ("NVIDIA H100 80GB HBM3", "9.0", "proprietary", PASS),
        ("NVIDIA GH200 480GB", "9.0", "proprietary", WARN),
        ("NVIDIA B200", "10.0", "proprietary", WARN),
        ("NVIDIA B200", "10.0", "open", PASS),
    ],
)
def test_which_kernel_module_drives_which_gpu(
    node: Node, put: Node, put_gpu: Node, name: str, capability: str, flavour: str, status: str
) -> None:
    view = put(put_gpu(node("t4"), [0], name=name, compute_capability=capability), driver__kernel_flavour=flavour)
    assert kernel_module.judge(view).status == status


def test_an_unread_module_matters_only_where_one_is_needed(node: Node, put: Node, put_gpu: Node) -> None:
    hidden = put(node("t4"), driver__kernel_flavour=Signal(reason="no /proc", why="failed"))
    assert kernel_module.judge(hidden).status == PASS
    assert kernel_module.judge(put_gpu(hidden, [0], compute_capability="7.0")).status == ERROR


def device(bus_id: str, driver: str | None = "nvidia", numa_node: int | None = 0) -> dict[str, Any]:
    return {"bus_id": bus_id, "driver": driver, "numa_node": numa_node, "aer": {}}


def test_a_gpu_that_only_the_bus_still_has_is_lost(node: Node, put: Node, put_gpu: Node) -> None:
    view = node("h100x8")
    assert gpu_lost.judge(view).status == PASS
    nine = [*view.snapshot.signal("pci.gpus").value, device("0000:99:00.0")]
    outcome = gpu_lost.judge(put(view, pci__gpus=nine))
    assert outcome.status == FAIL
    assert "0000:99:00.0" in outcome.summary
    assert gpu_lost.judge(put(view, pci__gpus=nine, container__runtime="docker")).status == SKIP
    # A GPU whose address is no address may be the one that seems to be missing.
    assert gpu_lost.judge(put_gpu(view, [0], bus_id="N/A")).status == PASS
    for_a_guest = [*nine[:-1], device("0000:99:00.0", "vfio-pci")]
    assert gpu_lost.judge(put(view, pci__gpus=for_a_guest)).status == PASS


def test_an_nvml_that_does_not_answer_is_no_pass(node: Node, put: Node, cpu: View) -> None:
    assert gpu_lost.judge(node("mismatch")).status == ERROR
    assert gpu_lost.judge(put(cpu, pci__gpus=[device("0000:01:00.0", "nouveau")])).status == WARN
    assert gpu_lost.judge(put(cpu, pci__gpus=[device("0000:01:00.0", None)])).status == WARN
    two = put(cpu, pci__gpus=[device("0000:01:00.0", "nouveau"), device("0000:02:00.0", None)])
    assert [(finding.culprit, "held by nouveau" in finding.summary) for finding in gpu_lost.judge(two).findings] == [
        ("PCI 0000:01:00.0", True),
        ("PCI 0000:02:00.0", False),
    ]


def test_machines_whose_bus_shows_no_gpu_are_skips(node: Node, put: Node, cpu: View) -> None:
    assert gpu_lost.judge(cpu).status == SKIP
    assert gpu_lost.judge(put(node("t4"), pci__gpus=[])).status == SKIP
    assert gpu_lost.judge(put(node("t4"), pci__gpus=Signal(reason="no /sys", why="failed"))).status == SKIP


def test_a_gpu_that_nvml_cannot_open_is_lost(node: Node) -> None:
    view = node("h100x8")
    snapshot = view.snapshot
    missing = type(snapshot.gpus[0])(
        "lost-3", {"index": Signal(3), "name": Signal(reason="NVML: GPU is lost", why="lost")}
    )
    snapshot.gpus[3] = missing
    outcome = gpu_lost.judge(view)
    assert outcome.status == FAIL
    assert "GPU 3" in outcome.summary


def test_numa_nodes(node: Node, put: Node) -> None:
    assert numa.judge(node("h100x8")).status == PASS
    assert numa.judge(put(node("h100x8"), host__numa_nodes=1)).status == SKIP
    assert numa.judge(put(node("h100x8"), pci__gpus=[])).status == SKIP
    for nowhere in (-1, None):
        gpus = [device("0000:10:00.0"), device("0000:11:00.0", numa_node=nowhere)]
        outcome = numa.judge(put(node("h100x8"), pci__gpus=gpus))
        assert (outcome.status, outcome.value) == (WARN, 1)
    both = [device("0000:10:00.0", numa_node=-1), device("0000:11:00.0", numa_node=None)]
    findings = numa.judge(put(node("h100x8"), pci__gpus=both)).findings
    assert [finding.culprit.split(" at ")[1] for finding in findings] == ["0000:10:00.0", "0000:11:00.0"]


def test_gpus_whose_cpus_this_process_may_not_use_are_named(node: Node, put: Node) -> None:
    far = numa.judge(put(node("h100x8"), host__numa_cpus={"0": 48, "1": 0}))
    uuids = [gpu.uuid for gpu in node("h100x8").snapshot.gpus]
    assert (far.status, far.details["gpus"]) == (WARN, uuids[4:])
    assert [finding.culprit for finding in far.findings] == [
        f"GPU {index} ({uuids[index]}) at {gpu['bus_id']}"
        for index, gpu in enumerate(node("h100x8").snapshot.signal("pci.gpus").value)
        if index > 3
    ]
    for visible, status in (("0,3", PASS), ("3,4", WARN), (uuids[7], WARN), ("", PASS)):
        requests = put(node("h100x8"), host__numa_cpus={"0": 48, "1": 0}, env={"CUDA_VISIBLE_DEVICES": visible})
        assert numa.judge(requests).status == status
    assert numa.judge(put(node("h100x8"), host__numa_cpus={"0": 1, "1": 1})).status == PASS
    # A node without CPUs is a GPU's own memory, or an expander's.
    assert numa.judge(put(node("h100x8"), host__numa_nodes=3, host__numa_cpus={"0": 1, "1": 1})).status == PASS
    unread = put(node("h100x8"), host__numa_cpus=Signal(reason="timed out: no answer in 10 s", why="timed-out"))
    assert numa.judge(unread).status == ERROR
    older = dataclasses.replace(node("h100x8").snapshot, signals={**node("h100x8").snapshot.signals})
    del older.signals["host.numa_cpus"]
    assert numa.judge(dataclasses.replace(node("h100x8"), snapshot=older)).status == PASS


def test_ecc_that_is_off_matters_where_it_comes_on(node: Node, put_gpu: Node) -> None:
    silent = Signal(reason="NVML: Not Supported", why="unsupported")
    off = put_gpu(node("h100x8"), range(8), ecc_mode="off", ecc_volatile_uncorrected=silent)
    assert ecc.judge(off).status == WARN
    assert ecc.judge(put_gpu(node("rtx4090"), [0], ecc_mode="off")).status == SKIP
