"""NUMA nodes: read off the kernel's files, run on, found for a GPU, and judged by the nearest."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envcheck.checks import ERROR, FAIL, PASS, WARN, View
from envcheck.checks.env import memory_bandwidth
from envcheck.node.snapshot import Signal
from tests.builders import H100, Entry, group
from tests.tables import each

Node = Callable[..., View]
NAN = float("nan")


def near(rate: float = 52.0, **changes: Any) -> Entry:
    return {"host to GPU": rate, "GPU to host": rate, "right": True, **changes}


def entries(view: View, across: Entry | None = None, **changes: Any) -> list[Entry]:
    measured = {"values": {"HBM copy": 2900.0}, "right": {"HBM copy": True}, "name": H100}
    measured["across"] = {"0": near(), "1": near()} if across is None else across
    return group({**measured, **changes}, view=view)


def test_cpu_lists_are_read_as_the_kernel_writes_them() -> None:
    assert memory_bandwidth.cpus("0-3,8\n") == {0, 1, 2, 3, 8}
    assert memory_bandwidth.cpus("\n") == set()
    with pytest.raises(ValueError, match="x"):
        memory_bandwidth.cpus("0-x")


def test_nodes_without_cpus_and_files_that_make_no_sense_are_left_out(tmp_path: Path) -> None:
    for name, text in (("node0", "0-1\n"), ("node1", "\n"), ("node2", "garbage"), ("power", "0")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cpulist").write_text(text)
    (tmp_path / "node3").mkdir()
    assert memory_bandwidth.nodes(tmp_path) == {"0": {0, 1}}
    assert memory_bandwidth.nodes(tmp_path / "nothing") == {}


def test_a_process_runs_on_a_node_and_comes_back() -> None:
    before = os.sched_getaffinity(0)
    one = {min(before)}
    with memory_bandwidth.on(one):
        assert os.sched_getaffinity(0) == one
    assert os.sched_getaffinity(0) == before
    with pytest.raises(OSError, match="Invalid argument"), memory_bandwidth.on({100_000}):
        pass
    assert os.sched_getaffinity(0) == before


def test_a_gpu_is_found_at_its_slot(h100: View) -> None:
    assert [memory_bandwidth.nearest(h100, gpu.uuid) for gpu in h100.snapshot.gpus] == list("00001111")
    assert memory_bandwidth.nearest(h100, "GPU-of-nobody") is None
    for nonsense in (
        Signal(reason="no /sys", why="failed"),
        Signal("x"),
        Signal([None]),
        Signal([{"bus_id": "0000:10:00.0"}]),
    ):
        h100.snapshot.signals["pci.gpus"] = nonsense
        assert memory_bandwidth.nearest(h100, h100.snapshot.gpus[0].uuid) is None


def test_the_nearest_node_is_judged_and_the_far_one_is_told(h100: View) -> None:
    ranks = entries(h100, {"0": near(52.0), "1": near(20.0)})
    for entry in ranks[4:]:
        entry["across"] = {"0": near(20.0), "1": near(52.0)}
    outcome = memory_bandwidth.judge(h100, ranks)
    assert outcome.status == PASS
    assert "host to GPU 52" in outcome.summary
    assert "from another NUMA node at least host to GPU 20, GPU to host 20" in outcome.summary
    assert outcome.details["numa"]["7"]["node"] == "1"


@each("rate, status", [(40.9, FAIL), (41.0, WARN), (45.9, WARN), (47.0, PASS)])
def test_a_slow_way_to_the_nearest_node_names_the_gpu(h100: View, rate: float, status: str) -> None:
    ranks = entries(h100)
    ranks[6]["across"] = {"0": near(52.0), "1": near(rate)}
    outcome = memory_bandwidth.judge(h100, ranks)
    assert outcome.status == status
    if outcome.status != PASS:
        assert f"rank 6 (NVIDIA H100 80GB HBM3, {h100.snapshot.gpus[6].uuid})" in outcome.summary


def test_where_the_slot_is_not_known_the_best_node_counts(h100: View) -> None:
    h100.snapshot.signals["pci.gpus"] = Signal(reason="hidden by the hypervisor", why="failed")
    outcome = memory_bandwidth.judge(h100, entries(h100, {"0": near(20.0), "1": near(52.0)}))
    assert outcome.status == PASS
    assert outcome.details["numa"]["0"]["node"] == "1"


def test_a_node_that_is_closed_is_told(h100: View) -> None:
    ranks = entries(h100, {"0": near()}, refused={"1": "Invalid argument"})
    outcome = memory_bandwidth.judge(h100, ranks)
    assert outcome.status == PASS
    assert "NUMA node 1 is closed to this process" in outcome.summary


@each("across", [{}, {"0": {}}, {"0": near(NAN), "1": near(NAN)}, {"0": {"right": True}}])
def test_no_rate_from_any_node_is_never_a_pass(h100: View, across: Entry) -> None:
    assert memory_bandwidth.judge(h100, entries(h100, across)).status in (ERROR, FAIL)
    assert memory_bandwidth.judge(h100, entries(h100, across)).remedy


@each("rate", [0.0, -1.0, None, NAN, float("inf"), "52"])
def test_a_rate_that_is_no_rate_is_an_error(h100: View, rate: Any) -> None:
    ranks = entries(h100)
    ranks[2]["across"] = {"0": near(rate)}
    assert memory_bandwidth.judge(h100, ranks).status == ERROR


@each("right", [False, None, 1])
def test_bytes_lost_on_the_way_to_any_node_fail(h100: View, right: Any) -> None:
    ranks = entries(h100)
    ranks[3]["across"] = {"0": near(), "1": near(right=right)}
    outcome = memory_bandwidth.judge(h100, ranks)
    assert outcome.status == FAIL
    assert "rank 3" in outcome.summary
    assert "NUMA node 1 did not bring every byte" in outcome.summary
