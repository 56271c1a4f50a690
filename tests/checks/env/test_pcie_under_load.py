"""A GPU's PCIe link and NUMA node, read from small trees like /sys, and a link judged by measurements made by hand."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envcheck.checks import ERROR, FAIL, PASS, SKIP, WARN
from envcheck.checks.env import memory_bandwidth, pcie_under_load
from tests.builders import H100, Entry, gpu_view, group, plant, put, put_gpu
from tests.tables import each

UUID = "GPU-00000000-1111-4000-8000-000000000000"


def bus(root: Path, speed: str, width: str = "16") -> Path:
    plant(root / "0000:1b:00.0", {"current_link_speed": f"{speed}\n", "current_link_width": f"{width}\n"})
    return root


@each("speed, generation", [("2.5", 1), ("8.0", 3), ("16.0", 4), ("32.0", 5), ("64.0", 6)])
def test_the_kernels_rates_are_generations(tmp_path: Path, speed: str, generation: int) -> None:
    assert pcie_under_load.link("0000:1b:00.0", bus(tmp_path, f"{speed} GT/s PCIe")) == (generation, 16)


@each("speed, width", [("Unknown", "16"), ("", "16"), ("7 GT/s", "16"), ("8.0 GT/s", "?")])
def test_a_link_that_is_not_told_is_no_link(tmp_path: Path, speed: str, width: str) -> None:
    with pytest.raises(ValueError, match="tells"):
        pcie_under_load.link("0000:1b:00.0", bus(tmp_path, speed, width))


def test_a_gpu_that_is_not_on_the_bus_here_is_an_error_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="current_link_speed"):
        pcie_under_load.link("0000:99:00.0", bus(tmp_path, "8.0 GT/s"))


def test_cuda_tells_the_address_of_its_device_in_the_kernels_letters() -> None:
    def name(text: Any, _length: int, _device: Any) -> int:
        text.value = b"0000:1B:00.0"
        return 0

    cuda = SimpleNamespace(cuDeviceGet=lambda *_: 0, cuDeviceGetPCIBusId=name)
    assert pcie_under_load.address(3, cuda) == "0000:1b:00.0"
    cuda.cuDeviceGet = lambda *_: 101
    with pytest.raises(OSError, match="no bus address of its device 3"):
        pcie_under_load.address(3, cuda)


def rank(*readings: Any, **entry: Any) -> Entry:
    measured = {"name": H100, "bus_id": "0000:10:00.0", "readings": [*readings], **entry}
    return group(measured, 1, device=UUID, backend=None)[0]


@each(
    "readings, status",
    [
        ([[1, 16], [5, 16]], PASS),  # what it is before the load counts for nothing
        ([[5, 16]] * 6 + [[1, 16]] * 4, PASS),
        ([[1, 16]] * 6 + [[5, 16]] * 4, FAIL),
        ([[5, 16]] * 4 + [[5, 12]] * 6, WARN),
        ([[5, 12]], WARN),
        ([[5, 8]], FAIL),
        ([[4, 16]], FAIL),
        ([[1, 16], [3, 16]], FAIL),
        ([], ERROR),
        ([[5, 0]], ERROR),
        ([[5]], ERROR),
    ],
)
def test_what_most_readings_show_is_held_against_what_it_can_be(readings: list[Any], status: str) -> None:
    outcome = pcie_under_load.judge(gpu_view("h100x8"), [rank(*readings)])
    assert outcome.status == status, outcome
    if status in (WARN, FAIL):
        assert outcome.details["device"] == UUID
        assert "where Gen5 x16 is possible" in outcome.summary


def test_desktops_split_their_lanes_and_virtual_machines_show_what_they_like() -> None:
    half = rank([4, 8], name="NVIDIA GeForce RTX 4090")
    assert pcie_under_load.judge(gpu_view("rtx4090"), [half]).status == WARN
    outcome = pcie_under_load.judge(put(gpu_view("h100x8"), host__hypervisor=True), [rank([1, 1])])
    assert (outcome.status, "virtual machine" in outcome.summary) == (WARN, True)


def test_what_cannot_be_held_against_anything_is_told() -> None:
    silent = put_gpu(gpu_view("h100x8"), [0], pcie_gen_max=None)
    for view in (silent, put(gpu_view("h100x8"), host__arch="aarch64")):
        outcome = pcie_under_load.judge(view, [rank([1, 16])])
        assert (outcome.status, "NVML does not say" in outcome.summary) == (PASS, True)
    hidden = rank(readings=None, unreadable="[Errno 2] No such file or directory: current_link_speed")
    assert pcie_under_load.judge(gpu_view("h100x8"), [hidden]).status == SKIP
    both = [rank([5, 16], world=2), {**hidden, "rank": 1, "world": 2, "device": "GPU-2"}]
    assert pcie_under_load.judge(gpu_view("h100x8"), both).status == ERROR
    assert pcie_under_load.judge(gpu_view("h100x8"), [rank([5, 16], is_cuda=False, device="cpu")]).status == FAIL


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
        plant(tmp_path, {"0000:1b:00.0/numa_node": f"{node}\n", "node1/cpulist": cpulist})
        assert memory_bandwidth.near(0) == expected
    (tmp_path / "node1" / "cpulist").unlink()
    (tmp_path / "node1" / "cpulist").mkdir()
    assert memory_bandwidth._places(allowed) == [allowed]  # noqa: SLF001 (as above)
    with memory_bandwidth.on({min(allowed)}):
        assert os.sched_getaffinity(0) == {min(allowed)}
    assert os.sched_getaffinity(0) == allowed
