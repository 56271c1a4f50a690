"""The ways to a GPU's memory: copies from its own NUMA node, judged by its model's limits, byte for byte."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from envcheck.checks import ERROR, FAIL, PASS, WARN, View
from envcheck.checks.env import memory_bandwidth, pcie_under_load
from tests.builders import H100, Entry, group
from tests.tables import each

NAN = float("nan")
RATES = {"HBM copy": 2900.0, "host to GPU": 52.0, "GPU to host": 52.0}


def entries(view: View, **changes: Any) -> list[Entry]:
    measured = {"values": dict(RATES), "right": dict.fromkeys(RATES, True), "name": H100}
    return group({**measured, **changes}, view=view)


def test_cpu_lists_are_read_as_the_kernel_writes_them() -> None:
    assert memory_bandwidth.cpus_of("0-3,8\n") == {0, 1, 2, 3, 8}
    assert memory_bandwidth.cpus_of("\n") == set()
    with pytest.raises(ValueError, match="x"):
        memory_bandwidth.cpus_of("0-x")


def test_copies_start_on_the_node_of_the_slot_where_the_kernel_tells_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = os.sched_getaffinity(0)
    (tmp_path / "0000:1b:00.0").mkdir()
    (tmp_path / "node1").mkdir()
    monkeypatch.setattr(pcie_under_load, "DEVICES", tmp_path)
    monkeypatch.setattr(pcie_under_load, "address", lambda _ordinal: "0000:1b:00.0")
    monkeypatch.setattr(memory_bandwidth, "NODES", tmp_path)
    assert memory_bandwidth.near(0) == (None, allowed)
    for node, cpulist, expected in (
        ("1", str(min(allowed)), ("1", {min(allowed)})),
        ("1", "9999", (None, allowed)),
        ("1", "garbage", (None, allowed)),
        ("-1", "0", (None, allowed)),
    ):
        (tmp_path / "0000:1b:00.0" / "numa_node").write_text(f"{node}\n")
        (tmp_path / "node1" / "cpulist").write_text(cpulist)
        assert memory_bandwidth.near(0) == expected
    with memory_bandwidth.on({min(allowed)}):
        assert os.sched_getaffinity(0) == {min(allowed)}
    assert os.sched_getaffinity(0) == allowed


@each("rate, status", [(40.9, FAIL), (41.0, WARN), (45.9, WARN), (47.0, PASS)])
def test_a_slow_way_to_the_host_names_the_gpu(h100: View, rate: float, status: str) -> None:
    ranks = entries(h100)
    ranks[6]["values"]["host to GPU"] = rate
    outcome = memory_bandwidth.judge(h100, ranks)
    assert outcome.status == status
    if outcome.status != PASS:
        assert f"rank 6 (NVIDIA H100 80GB HBM3, {h100.snapshot.gpus[6].uuid})" in outcome.summary


@each("rate", [0.0, -1.0, None, NAN, float("inf"), "52"])
def test_a_rate_that_is_no_rate_is_an_error(h100: View, rate: Any) -> None:
    ranks = entries(h100)
    ranks[2]["values"]["GPU to host"] = rate
    assert memory_bandwidth.judge(h100, ranks).status == ERROR
    assert memory_bandwidth.judge(h100, entries(h100, values={})).status == ERROR


@each("right", [False, None, 1])
def test_bytes_lost_on_the_way_fail(h100: View, right: Any) -> None:
    ranks = entries(h100)
    ranks[3]["right"]["host to GPU"] = right
    outcome = memory_bandwidth.judge(h100, ranks)
    assert outcome.status == FAIL
    assert "rank 3" in outcome.summary
    assert "host to GPU did not bring every byte" in outcome.summary
