"""NVLinks and the fabric: GPUs are compared with each other first, with their data sheet second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from envcheck.checks import ERROR, FAIL, PASS, SKIP, WARN, View
from envcheck.checks.node import fabric, nvlink, nvlink_errors
from envcheck.node.snapshot import Signal
from tests.tables import each

Node = Callable[..., View]
UNREAD = Signal(reason="NVML: Unknown Error", why="failed")
QUIET = {"replay": 0, "recovery": 0, "crc": 0}
REGISTERED = {"state": "completed", "status": "ok", "health": "healthy"}
ALL = range(8)


def links(up: int, down: int = 0) -> list[str]:
    return ["up"] * up + ["down"] * down


def test_every_link_up_passes(node: Node) -> None:
    for name, count in (("h100x8", 18), ("a100x8", 12), ("v100x4", 6)):
        outcome = nvlink.judge(node(name))
        assert (outcome.status, outcome.value) == (PASS, count)


@each("down, count", [(6, 12), (0, 12), (18, 0)])
def test_twelve_of_eighteen_everywhere_may_be_by_design(node: Node, put_gpu: Node, down: int, count: int) -> None:
    outcome = nvlink.judge(put_gpu(node("h100x8"), ALL, nvlinks=links(count, down)))
    assert outcome.status == WARN
    assert "by design" in outcome.remedy
    assert outcome.limit is not None
    assert outcome.limit.value == 18
    assert [f.culprit.split(" (")[0] for f in outcome.findings] == [f"GPU {index}" for index in ALL]


@each("speed, status", [(26562, PASS), (26000, PASS), (25999, WARN), (0, WARN)])
def test_a_slow_link_is_a_warning(node: Node, put_gpu: Node, speed: int, status: str) -> None:
    assert nvlink.judge(put_gpu(node("h100x8"), ALL, nvlink_speed=speed)).status == status


def test_one_slow_gpu_among_fast_ones_is_named(node: Node, put_gpu: Node) -> None:
    outcome = nvlink.judge(put_gpu(node("h100x8"), [5], nvlink_speed=26100))
    assert outcome.status == WARN
    assert "GPU 5 26100 MB/s" in outcome.summary


@each("name", ["t4", "rtx4090", "mixed", "mig"])
def test_boards_without_links_one_gpu_and_mig_are_skips(node: Node, name: str) -> None:
    assert nvlink.judge(node(name)).status == SKIP


def test_a_lone_gpu_and_mig_instances_have_nobody_to_be_linked_to(node: Node, put_gpu: Node) -> None:
    lone = put_gpu(node("mig"), [0], nvlinks=links(0, 12), mig_mode="off")
    assert "one GPU" in nvlink.judge(lone).summary
    assert "MIG" in nvlink.judge(put_gpu(node("a100x8"), ALL, mig_mode="on")).summary


def test_an_unknown_board_is_judged_by_its_neighbours_alone(node: Node, put_gpu: Node) -> None:
    unknown = put_gpu(node("h100x8"), ALL, name="NVIDIA Z900", nvlinks=links(7))
    assert nvlink.judge(unknown).status == PASS
    assert nvlink.judge(put_gpu(unknown, [1], nvlinks=links(6))).status == FAIL


def test_a_speed_that_cannot_be_read_is_no_pass_where_links_are_up(node: Node, put_gpu: Node) -> None:
    failed, refused = (Signal(reason="NVML: x", why=why) for why in ("failed", "no-data"))
    assert nvlink.judge(put_gpu(node("h100x8"), [2], nvlink_speed=failed)).code == "nvlink-speed.unread"
    assert nvlink.judge(put_gpu(node("h100x8"), ALL, nvlink_speed=refused)).status == PASS
    assert nvlink.judge(put_gpu(node("rtx4090"), [0], nvlink_speed=failed)).status == SKIP


def test_a_gpu_of_unknown_name_beside_linked_ones_has_no_half_bridge(node: Node, put_gpu: Node) -> None:
    assert nvlink.judge(put_gpu(node("h100x8"), [7], name=Signal(reason="x", why="failed"))).status == PASS
    assert nvlink.judge(put_gpu(node("h100x8"), [7], name="NVIDIA Z900")).status == PASS
    apart = put_gpu(node("h100x8"), ALL, name="NVIDIA Z900", nvlinks=links(0, 4))
    assert nvlink.judge(put_gpu(apart, [7], nvlinks=links(4))).code == "nvlink.half-bridge"


@each(
    "name, count",
    [
        ("NVIDIA H100 80GB HBM3", 18),
        ("NVIDIA H200", 18),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA A100 80GB PCIe", None),
        ("NVIDIA A100-SXM4-40GB", 12),
        ("Tesla V100-SXM2-16GB", 6),
        ("NVIDIA B200", 18),
        ("NVIDIA L40S", None),
    ],
)
def test_boards_by_the_name_nvml_gives(name: str, count: int | None) -> None:
    row = nvlink.board(name)
    assert (row["links"] if row else None) == count


@each("row", nvlink.boards())
def test_each_board_has_a_source(row: dict[str, Any]) -> None:
    assert len(row["source"]) > 20


@each("counts, status", [({}, PASS), ({"recovery": 1}, WARN), ({"crc": 100}, PASS), ({"crc": 60, "replay": 41}, WARN)])
def test_link_errors_on_each_side(node: Node, put_gpu: Node, counts: dict[str, int], status: str) -> None:
    assert nvlink_errors.judge(put_gpu(node("h100x8"), [2], nvlink_errors={**QUIET, **counts})).status == status


@each(
    "change, status",
    [
        ({}, PASS),
        ({"health": "not supported"}, PASS),
        ({"state": "in progress"}, FAIL),
        ({"state": "not started"}, FAIL),
        ({"status": "Unknown Error"}, FAIL),
        ({"health": "unhealthy"}, FAIL),
        ({"health": "limited capacity"}, WARN),
    ],
)
def test_the_fabric_on_each_side(node: Node, put_gpu: Node, change: dict[str, str], status: str) -> None:
    assert fabric.judge(put_gpu(node("h100x8"), [7], fabric={**REGISTERED, **change})).status == status


def test_one_gpu_that_works_without_its_fabric_is_a_warning(node: Node, put_gpu: Node) -> None:
    unregistered = {**REGISTERED, "state": "not started"}
    assert fabric.judge(put_gpu(node("mig"), [0], fabric=unregistered)).status == WARN
    assert fabric.judge(put_gpu(node("mig", device_count=0), [0], fabric=unregistered)).status == FAIL


@each("name", ["a100x8", "v100x4", "t4", "rtx4090", "mig"])
def test_machines_without_a_fabric_are_skips(node: Node, name: str) -> None:
    assert fabric.judge(node(name)).status == SKIP


@each("judge, name", [(nvlink.judge, "nvlinks"), (nvlink_errors.judge, "nvlink_errors"), (fabric.judge, "fabric")])
def test_what_cannot_be_read_is_an_error(node: Node, put_gpu: Node, judge: Callable[[View], Any], name: str) -> None:
    assert judge(put_gpu(node("h100x8"), [0], **{name: UNREAD})).status == ERROR
