"""GPUs that should reach each other: what is a fault, what is by design, and who else was there."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from envcheck.checks import ERROR, FAIL, PASS, SKIP, WARN, Check, Limit, View, passed, too_slow, warned
from envcheck.checks.node import acs, bar1, gpu_in_use, iommu, p2p_status
from envcheck.node.snapshot import Signal
from envcheck.runner import judging
from envcheck.runner.judging import decide
from envcheck.runner.planning import CheckModule, discover
from tests.tables import each

Node = Callable[..., View]
FOUND = {module.id: module for module in discover()}
BRIDGE = {"bus_id": "0000:0f:00.0", "gpus": ["0000:10:00.0"], "enabled": ["request redirect"]}
TRANSLATES = {"0000:10:00.0": "DMA-FQ", "0000:11:00.0": "identity"}


def pairs(count: int = 4, **odd: Any) -> list[dict[str, Any]]:
    """Return the matrix of so many GPUs, over PCIe; `odd` is of the last pair."""
    sound = {"read": "ok", "write": "ok", "nvlink": "not supported", "path": "PIX"}
    module = [{"a": a, "b": b, **sound} for a, b in itertools.combinations(range(count), 2)]
    return [*module[:-1], {**module[-1], **odd}]


@each(
    "matrix, status, message",
    [
        (pairs(), PASS, "every pair has it (6 pairs): 6 over PCIe"),
        (pairs(nvlink="ok"), PASS, "1 over NVLink, 5 over PCIe"),
        (pairs(read="not supported"), WARN, "GPU 2 - GPU 3 (not supported)"),
        (pairs(read="not supported", nvlink="ok"), FAIL, "GPU 2 - GPU 3 (not supported)"),
        # Across the sockets it has none where below a switch it has: another kind of path.
        (pairs(write="topology not supported", path="SYS"), PASS, "5 of 6 pairs with it"),
        ([{**p, "read": "chipset not supported"} for p in pairs()], SKIP, "chipset not supported"),
    ],
)
def test_a_pair_is_held_against_its_links_and_its_like(
    node: Node, put: Node, matrix: list[dict[str, Any]], status: str, message: str
) -> None:
    outcome = p2p_status.judge(put(node("v100x4"), gpu__p2p=matrix))
    assert (outcome.status, message in outcome.summary) == (status, True), outcome
    if status in (WARN, FAIL):
        assert len(outcome.details["gpus"]) == 2


def test_gpus_on_switches_have_peer_to_peer_whatever_nvml_says_of_links_between_them(
    node: Node, put: Node, put_gpu: Node
) -> None:
    view = put(node("v100x4"), gpu__p2p=[{**p, "read": "not supported"} for p in pairs()])
    assert p2p_status.judge(put_gpu(view, range(4), nvlink_remotes=["switch", "switch"])).status == FAIL
    assert p2p_status.judge(put_gpu(view, range(4), nvlink_remotes=["gpu", "switch"])).status == SKIP
    assert p2p_status.judge(put_gpu(view, [0], mig_mode="on")).status == SKIP


def test_acs_is_a_fault_on_bare_metal_where_there_is_something_to_turn_back(node: Node, put: Node) -> None:
    bare = put(node("v100x4"), pci__acs=[BRIDGE], host__hypervisor=False)
    outcome = acs.judge(bare)
    assert (outcome.status, outcome.value, outcome.details["bridges"]) == (WARN, 1, ["0000:0f:00.0"])
    assert acs.judge(put(bare, pci__acs=[{**BRIDGE, "enabled": ["source validation"]}])).status == PASS
    for redirect in ("request redirect", "completion redirect"):
        assert acs.judge(put(bare, pci__acs=[{**BRIDGE, "enabled": [redirect]}])).status == WARN
    assert acs.judge(put(bare, pci__acs=[])).status == SKIP
    assert acs.judge(put(bare, host__hypervisor=True)).status == SKIP
    assert "is unknown" in acs.judge(put(bare, host__hypervisor=Signal(reason="no flags", why="failed"))).summary
    without = [{**pair, "read": "chipset not supported"} for pair in pairs()]
    assert acs.judge(put(bare, gpu__p2p=without)).status == SKIP
    assert acs.judge(put(bare, gpu__p2p=pairs())).status == WARN


def test_an_iommu_is_a_fault_on_bare_metal_where_pairs_use_the_bus(node: Node, put: Node) -> None:
    bare = put(node("v100x4"), pci__iommu=TRANSLATES, host__hypervisor=False, gpu__p2p=pairs())
    assert (iommu.judge(bare).status, iommu.judge(bare).value) == (WARN, 1)
    assert iommu.judge(put(bare, pci__iommu={"0000:10:00.0": "identity"})).status == PASS
    assert iommu.judge(put(bare, pci__iommu={"0000:10:00.0": None})).status == PASS
    assert iommu.judge(put(bare, pci__iommu={})).status == SKIP
    assert iommu.judge(put(bare, host__hypervisor=True)).status == SKIP
    assert iommu.judge(put(bare, gpu__p2p=[{**pair, "nvlink": "ok"} for pair in pairs()])).status == PASS
    assert iommu.judge(put(bare, gpu__p2p=Signal(reason="NVML: Unknown Error", why="failed"))).status == SKIP


def test_each_bridge_that_redirects_is_a_finding_with_its_own_command(node: Node, put: Node) -> None:
    other, quiet = {**BRIDGE, "bus_id": "0000:1f:00.0"}, {**BRIDGE, "bus_id": "0000:2f:00.0", "enabled": []}
    outcome = acs.judge(put(node("v100x4"), pci__acs=[BRIDGE, quiet, other], host__hypervisor=False))
    assert [finding.culprit for finding in outcome.findings] == ["PCIe bridge 0000:0f:00.0", "PCIe bridge 0000:1f:00.0"]
    for finding in outcome.findings:
        assert (finding.status, finding.value, finding.limit and finding.limit.value) == (WARN, 1, 0)
        assert f"setpci -s {finding.culprit.split()[-1]} " in finding.remedy


def test_each_gpu_behind_the_iommu_is_a_finding_unless_it_reaches_no_other_over_the_bus(
    node: Node, put: Node, put_gpu: Node
) -> None:
    view = node("v100x4")
    for index in range(4):
        view = put_gpu(view, [index], bus_id=f"00000000:1{index}:00.0")
    groups = {f"0000:1{index}:00.0": "DMA" if index else "identity" for index in range(4)}
    # GPU 3 has NVLinks to all others, so nothing of it goes over the bus.
    linked = [{**pair, "nvlink": "ok"} if pair["b"] == 3 else pair for pair in pairs()]
    outcome = iommu.judge(put(view, pci__iommu=groups, host__hypervisor=False, gpu__p2p=linked))
    assert [finding.culprit.split(" (")[0] for finding in outcome.findings] == ["GPU 1", "GPU 2"]
    uuids = [gpu.uuid for gpu in view.snapshot.gpus]
    assert (outcome.status, outcome.details["gpus"]) == (WARN, uuids[1:3])
    assert all(finding.remedy and finding.limit for finding in outcome.findings)
    alone = put(view, pci__iommu={"0000:13:00.0": "DMA"}, host__hypervisor=False, gpu__p2p=linked)
    assert iommu.judge(alone).status == PASS


@each("check, name", [("p2p-status", "gpu.p2p"), ("acs", "pci.acs"), ("iommu", "pci.iommu")])
def test_a_snapshot_of_before_is_a_skip_and_nonsense_an_error(node: Node, put: Node, check: str, name: str) -> None:
    view = node("v100x4")
    assert decide(FOUND[check], view).status == SKIP
    kinds: tuple[Any, ...] = (
        "banana",
        7,
        [7],
        [{}],
        {"a": 1},
        Signal(reason="read as 7, which it cannot be", why="failed"),
    )
    for nonsense in kinds:
        outcome = decide(FOUND[check], put(view, **{name.replace(".", "__"): nonsense}))
        assert outcome.status in ((ERROR, PASS) if (check, nonsense) == ("iommu", {"a": 1}) else (ERROR,)), nonsense
    hidden = Signal(reason="/sys/bus/pci/devices: Permission denied", why="denied")
    if check != "p2p-status":
        assert decide(FOUND[check], put(view, **{name.replace(".", "__"): hidden})).status == SKIP


def test_a_window_is_held_against_the_memory_of_data_centre_boards_and_against_its_like(
    node: Node, put: Node, put_gpu: Node
) -> None:
    view = node("h100x8")
    memory = view.snapshot.gpus[0].signal("memory_total").value
    assert bar1.judge(view).status == PASS
    assert bar1.judge(put_gpu(view, range(8), bar1_total=memory)).status == PASS
    small = bar1.judge(put_gpu(view, range(8), bar1_total=memory - 1))
    assert (small.status, small.limit and small.limit.value) == (WARN, memory)
    assert bar1.judge(put(put_gpu(view, range(8), bar1_total=1 << 28), host__arch="aarch64")).status == PASS
    odd = bar1.judge(put_gpu(node("v100x4"), [2], bar1_total=1 << 28))
    assert (odd.status, "GPU 2 256 MiB" in odd.summary) == (WARN, True)
    for modest in ("t4", "rtx4090"):
        assert bar1.judge(put_gpu(node(modest), [0], bar1_total=1 << 28)).status == PASS


def test_who_is_on_a_gpu_is_named_from_the_limits_on(node: Node, put_gpu: Node) -> None:
    def summary_of(**signals: Any) -> tuple[str, str]:
        outcome = gpu_in_use.judge(put_gpu(node("h100x8"), [3], **signals))
        return outcome.status, outcome.summary

    assert summary_of(memory_used=2 << 30, utilization=10)[0] == PASS
    status, summary = summary_of(
        memory_used=(2 << 30) + 1, processes=[{"pid": 7, "memory": 1}, {"pid": 8, "memory": 9}]
    )
    assert (status, "GPU 3: 8, 7" in summary) == (WARN, True)
    status, summary = summary_of(utilization=11, processes=[{"pid": 7, "memory": None, "name": "python"}])
    assert (status, "7 (python) kept it 11 % busy on GPU 3" in summary) == (WARN, True)
    assert "a process not shown here held 40.0 GiB on GPU 3" in summary_of(memory_used=40 << 30)[1]
    status, summary = summary_of(processes=[{"pid": 7, "memory": 1 << 20, "name": "Xorg"}])
    assert (status, "processes below the limit: GPU 3 7 (Xorg)" in summary) == (PASS, True)


SPEED = Limit(300, "GB/s", "somebody who measured it")
SLOW = too_slow("slow", fix="look at the links", value=9, unit="GB/s", limit=SPEED, code="speed.slow")
LOW = warned("low", fix="look at the links", value=290, unit="GB/s", limit=SPEED, code="speed.low")
FINE = passed("fine", value=400, unit="GB/s", limit=SPEED)
FAST = CheckModule(
    "it", "env", Check(promise="p", level="quick", performance=True), decide, "doc", "f", FOUND["acs"].path
)


def test_a_speed_that_falls_short_beside_somebody_elses_work_is_not_told(node: Node, put_gpu: Node) -> None:
    free = node("h100x8")
    taken = put_gpu(free, [3], memory_used=70 << 30, processes=[{"pid": 4711, "name": "python"}])
    other = taken.snapshot.gpus[3].uuid
    outcome = judging.excuse_busy(SLOW, judging.Evidence(FAST, taken, {}))
    assert outcome.status == ERROR
    assert outcome.summary == "measured while 4711 (python) held 70.0 GiB on GPU 3: slow"
    assert (outcome.details["tenants"], bool(outcome.remedy)) == ([other], True)
    assert judging.excuse_busy(LOW, judging.Evidence(FAST, taken, {})).status == WARN
    assert "4711 (python)" in judging.excuse_busy(LOW, judging.Evidence(FAST, taken, {})).summary
    assert judging.excuse_busy(SLOW, judging.Evidence(FAST, free, {})) == SLOW
    assert judging.excuse_busy(FINE, judging.Evidence(FAST, taken, {})) == FINE
    # What is wrong is wrong beside anybody.
    right = FAST._replace(check=Check(promise="p", level="quick"))
    assert judging.excuse_busy(SLOW, judging.Evidence(right, taken, {})) == SLOW


def test_only_who_is_on_the_gpu_that_is_blamed_is_an_excuse(node: Node, put_gpu: Node) -> None:
    taken = put_gpu(node("h100x8"), [3], utilization=99)
    uuids = [gpu.uuid for gpu in taken.snapshot.gpus]

    def excused(**details: Any) -> bool:
        slow = too_slow("slow", fix="look", value=9, unit="GB/s", limit=SPEED, **details)
        return judging.excuse_busy(slow, judging.Evidence(FAST, taken, {})).status == ERROR

    assert [excused(device=uuids[3]), excused(device=uuids[4])] == [True, False]
    assert [excused(gpus=uuids[2:4]), excused(gpus=uuids[4:6])] == [True, False]
    # A run on other GPUs than the tenant's is its own.
    seen = node("h100x8", devices=[{"uuid": uuids[0]}])
    beside = put_gpu(seen, [3], utilization=99)
    assert judging.excuse_busy(SLOW, judging.Evidence(FAST, beside, {})) == SLOW
