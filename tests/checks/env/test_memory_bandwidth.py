"""The ways to a GPU's memory: copies from its own NUMA node, judged by its model's limits, byte for byte."""

import os
from pathlib import Path

import pytest

from envcheck.checks.env import memory_bandwidth, pcie_under_load


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
    assert memory_bandwidth._places(allowed) == [allowed]  # noqa: SLF001 (no GPU to ask)
    for node, cpulist, expected in (
        ("1", str(min(allowed)), ("1", {min(allowed)})),
        ("1", "9999", (None, allowed)),
        ("1", "garbage", (None, allowed)),
        ("-1", "0", (None, allowed)),
    ):
        (tmp_path / "0000:1b:00.0" / "numa_node").write_text(f"{node}\n")
        (tmp_path / "node1" / "cpulist").write_text(cpulist)
        assert memory_bandwidth.near(0) == expected
    (tmp_path / "node1" / "cpulist").unlink()
    (tmp_path / "node1" / "cpulist").mkdir()
    assert memory_bandwidth._places(allowed) == [allowed]  # noqa: SLF001 (as above)
    with memory_bandwidth.on({min(allowed)}):
        assert os.sched_getaffinity(0) == {min(allowed)}
    assert os.sched_getaffinity(0) == allowed
