"""What makes a GPU slow: throttles, caps, heat, lost lanes. A choice and an idle GPU are no faults."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from envcheck.checks import ERROR, FAIL, PASS, SKIP, WARN, View
from envcheck.checks.node import inforom, pcie_errors, pcie_link, power_limit, temperature, throttle
from envcheck.node.snapshot import Signal
from tests.tables import each

Node = Callable[..., View]
Judge = Callable[[View], Any]
UNSUPPORTED = Signal(reason="NVML: Not Supported", why="unsupported")
UNREAD = Signal(reason="NVML: Unknown Error", why="failed")
HEALTHY = ("h100x8", "a100x8", "v100x4", "t4", "rtx4090", "mig", "mixed")
EACH: list[tuple[Judge, str]] = [
    (throttle.judge, "clock_reasons"),
    (power_limit.judge, "power_limit"),
    (temperature.judge, "temperature_margin"),
    (pcie_link.judge, "pcie_width"),
    (pcie_link.judge, "pcie_gen"),
    (pcie_errors.judge, "pcie_replays"),
]


@each("name, judge", itertools.product(HEALTHY, dict.fromkeys(judge for judge, _ in EACH)))
def test_a_healthy_machine_passes(node: Node, judge: Judge, name: str) -> None:
    assert judge(node(name)).status == PASS


@each("judge, name", EACH)
def test_unread_is_an_error_and_unsupported_a_skip(node: Node, put_gpu: Node, judge: Judge, name: str) -> None:
    assert judge(put_gpu(node("h100x8"), [0], **{name: UNREAD})).status == ERROR
    assert judge(put_gpu(node("h100x8"), range(8), **{name: UNSUPPORTED})).status == SKIP


@each(
    "reasons, status",
    [
        ([], PASS),
        (["idle"], PASS),
        (["software power cap", "applications clocks", "sync boost"], PASS),
        (["hardware slowdown"], WARN),
        (["software thermal slowdown"], WARN),
        (["hardware slowdown", "hardware thermal slowdown"], FAIL),
        (["power brake"], FAIL),
    ],
)
def test_each_reason_to_be_slow(node: Node, put_gpu: Node, reasons: list[str], status: str) -> None:
    outcome = throttle.judge(put_gpu(node("h100x8"), [6], clock_reasons=reasons))
    assert outcome.status == status
    if status != PASS:
        assert "GPU 6" in outcome.summary


@each("watts, status", [(700.0, PASS), (693.0, PASS), (692.0, WARN), (500.0, WARN)])
def test_a_cap_is_named_with_what_it_should_be(node: Node, put_gpu: Node, watts: float, status: str) -> None:
    outcome = power_limit.judge(put_gpu(node("h100x8"), [1], power_limit=watts))
    assert outcome.status == status
    if status == WARN:
        assert f"GPU 1 {watts:g} of 700 W" in outcome.summary
        assert "--power-limit=700" in outcome.remedy


@each("margin, status", [(10, PASS), (9, WARN), (1, WARN), (0, FAIL), (-2, FAIL)])
def test_the_margin_is_the_gpus_own(node: Node, put_gpu: Node, margin: int, status: str) -> None:
    assert temperature.judge(put_gpu(node("h100x8"), [2], temperature_margin=margin)).status == status


def test_lost_lanes_fail_on_a_datacentre_gpu_and_warn_elsewhere(node: Node, put_gpu: Node) -> None:
    outcome = pcie_link.judge(put_gpu(node("h100x8"), [4], pcie_width=8))
    assert (outcome.status, outcome.value) == (FAIL, 8)
    assert "GPU 4 8 of 16" in outcome.summary
    assert pcie_link.judge(put_gpu(node("rtx4090"), [0], pcie_width=8)).status == WARN
    assert pcie_link.judge(put_gpu(node("rtx4090"), [0], pcie_width=8, pcie_width_max=8)).status == PASS


@each(
    "signals, words",
    [
        ({"name": "Tesla M10", "multi_gpu_board": True}, "x8 of x16, as the GPUs of one board share its lanes"),
        ({"name": "NVIDIA GeForce RTX 3070 Ti Laptop GPU"}, "x8 of x16, as this laptop was built"),
        ({"name": "NVIDIA GB10"}, "x8 of x16, which this GPU, on NVLink-C2C, does not need"),
        ({"name": "NVIDIA GH200 480GB"}, "on NVLink-C2C"),
        ({"name": "Tesla M10", "multi_gpu_board": False}, ""),
        ({"name": "NVIDIA B200"}, ""),
    ],
)
def test_lanes_that_nobody_can_add_are_a_note(node: Node, put_gpu: Node, signals: dict[str, Any], words: str) -> None:
    eight = put_gpu(node("h100x8"), list(range(8)), pcie_width=8, **signals)
    outcome = pcie_link.judge(eight)
    assert (outcome.status, words in outcome.summary) == (PASS if words else FAIL, True)
    # One that has fewer than its like is a fault there too.
    odd = pcie_link.judge(put_gpu(eight, [4], pcie_width=4))
    assert (odd.status in (FAIL, WARN), "GPU 4 4 of 16" in "".join(f.summary for f in [odd, *odd.findings])) == (
        True,
    ) * 2


def test_fewer_lanes_fail_only_where_this_is_known_to_be_no_virtual_machine(
    node: Node, put: Node, put_gpu: Node
) -> None:
    eight = put_gpu(node("h100x8"), list(range(8)), pcie_width=8)
    unknown = Signal(reason="/proc/cpuinfo has no flags", why="no-data")
    for hypervisor, status in ((False, FAIL), (True, PASS), (unknown, WARN)):
        assert pcie_link.judge(put(eight, host__hypervisor=hypervisor)).status == status
    assert pcie_link.judge(put(put_gpu(eight, [4], pcie_width=4), host__hypervisor=unknown)).status == FAIL


def test_the_generation_of_a_link_that_carries_nothing_is_no_fault(node: Node, put_gpu: Node) -> None:
    working = {"pcie_gen": 1, "pcie_gen_max": 5, "clock_reasons": [], "utilization": 90}
    assert pcie_link.judge(put_gpu(node("rtx4090"), [0], name="NVIDIA GB10", **working)).status == PASS
    assert pcie_link.judge(put_gpu(node("rtx4090"), [0], **working)).status == WARN


@each(
    "name, state, status",
    [
        ("Tesla V100-SXM2-32GB", "intact", PASS),
        ("Tesla V100-SXM2-32GB", "corrupted", FAIL),
        ("Quadro P4000", "corrupted", WARN),
        ("a board that nobody knows", "corrupted", FAIL),
        ("Tesla V100-SXM2-32GB", Signal(reason="NVML: Not Supported", why="unsupported"), SKIP),
        ("Tesla V100-SXM2-32GB", Signal(reason="NVML: Unknown Error", why="failed"), ERROR),
    ],
)
def test_a_corrupted_inforom_is_a_fault(node: Node, put_gpu: Node, name: str, state: Any, status: str) -> None:
    outcome = inforom.judge(put_gpu(node("rtx4090"), [0], name=name, inforom=state))
    assert outcome.status == status
    if status in (FAIL, WARN):
        assert (outcome.code, outcome.culprit.split()[:2]) == ("inforom.corrupted", ["GPU", "0"])


@each("reasons, status", [(["idle"], PASS), ([], WARN), (["software power cap"], WARN)])
def test_a_low_generation_is_normal_in_an_idle_gpu_only(
    node: Node, put_gpu: Node, reasons: list[str], status: str
) -> None:
    assert pcie_link.judge(put_gpu(node("h100x8"), [4], pcie_gen=1, clock_reasons=reasons)).status == status


@each("count, status", [(80, PASS), (81, WARN)])
def test_replays_on_each_side(node: Node, put_gpu: Node, count: int, status: str) -> None:
    outcome = pcie_errors.judge(put_gpu(node("h100x8"), [3], pcie_replays=count))
    assert outcome.status == status
    assert outcome.details.get("gpus", []) == ([node("h100x8").snapshot.gpus[3].uuid] if status == WARN else [])


@each(
    "kind, count, status",
    [
        ("correctable", 480, PASS),
        ("correctable", 481, WARN),
        ("nonfatal", 1, WARN),
        ("fatal", 1, FAIL),
        ("fatal", None, PASS),
    ],
)
def test_the_kernels_counters_on_each_side(node: Node, put: Node, kind: str, count: int | None, status: str) -> None:
    aer = {"fatal": 0, "nonfatal": 0, "correctable": 0, kind: count}
    gpus = [{"bus_id": "0000:12:00.0", "driver": "nvidia", "numa_node": 0, "aer": aer}]
    outcome = pcie_errors.judge(put(node("h100x8"), pci__gpus=gpus))
    assert outcome.status == status
    # NVML writes that slot as 00000000:12:00.0.
    assert outcome.details.get("gpus", []) == ([node("h100x8").snapshot.gpus[2].uuid] if status != PASS else [])
