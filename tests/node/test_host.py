"""The host around the GPUs, read off small trees that look like one."""

import os
import time
from pathlib import Path

import pytest

from envcheck.node import buses, host, signal_source
from tests.node.conftest import read
from tests.tables import each

STAT = "{pid} ({name}) {state} 1 2 3 4 5 {flags} 0 0\n"


def process(root: Path, pid: int, name: str, state: str, flags: int = 0) -> None:
    (root / f"proc/{pid}").mkdir(parents=True)
    (root / f"proc/{pid}/stat").write_text(STAT.format(pid=pid, name=name, state=state, flags=flags))


def device(root: Path, bus: str, vendor: str, kind: str, driver: str | None) -> Path:
    path = root / "sys/bus/pci/devices" / bus
    path.mkdir(parents=True)
    (path / "vendor").write_text(f"{vendor}\n")
    (path / "class").write_text(f"{kind}\n")
    (path / "numa_node").write_text("1\n")
    if driver:
        (root / "drivers" / driver).mkdir(parents=True, exist_ok=True)
        (path / "driver").symlink_to(root / "drivers" / driver)
    return path


def test_gpus_on_the_bus_are_nvidias_display_controllers_alone(tmp_path: Path) -> None:
    gpu = device(tmp_path, "0000:1B:00.0", "0x10de", "0x030200", "nvidia")
    (gpu / "aer_dev_correctable").write_text("RxErr 3\nTOTAL_ERR_COR 7\n")
    (gpu / "device").write_text("0x2901\n")
    device(tmp_path, "0000:1c:00.0", "0x10de", "0x030000", None)
    device(tmp_path, "0000:05:00.0", "0x10de", "0x068000", "nvidia-nvswitch")
    device(tmp_path, "0000:02:00.0", "0x1002", "0x030000", "amdgpu")
    gpus = read(buses.pci_sources(tmp_path))["pci.gpus"].value
    assert [(g["bus_id"], g["driver"], g["numa_node"]) for g in gpus] == [
        ("0000:1b:00.0", "nvidia", 1),
        ("0000:1c:00.0", None, 1),
    ]
    assert gpus[0]["aer"] == {"fatal": None, "nonfatal": None, "correctable": 7}
    assert [g["device"] for g in gpus] == ["0x2901", None]


def test_only_what_stays_in_the_kernel_is_stuck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process(tmp_path, 10, "python (odd) name", "D")
    process(tmp_path, 11, "dd", "D")
    process(tmp_path, 12, "kworker", "D", flags=0x00200000)
    process(tmp_path, 13, "bash", "S")
    process(tmp_path, 14, "cp", "D")
    for pid in (10, 14):
        (tmp_path / f"proc/{pid}/status").write_bytes(b"Name:\t\xff\nvoluntary_ctxt_switches:\t7\n")

    def later(_seconds: float) -> None:
        (tmp_path / "proc/11/stat").write_text(STAT.format(pid=11, name="dd", state="R", flags=0))
        (tmp_path / "proc/14/status").write_text("Name:\tx\nvoluntary_ctxt_switches:\t8\n")  # away, and there again

    monkeypatch.setattr(time, "sleep", later)
    monkeypatch.setattr(host, "STAYS", 0.01)
    stuck = read(host.sources(tmp_path, {}))["host.stuck_processes"].value
    assert stuck == [{"pid": 10, "name": "python (odd) name"}]


def test_a_process_that_is_stuck_is_told_before_the_source_times_out(tmp_path: Path) -> None:
    [task] = signal_source.each({"stuck": host.sources(tmp_path, {})["host.stuck_processes"]})
    assert host.STAYS >= 10
    assert task.timeout > host.STAYS + host.LOOK_AGAIN + 1


def test_numa_nodes_and_huge_pages(tmp_path: Path) -> None:
    for name in ("node0", "node1", "has_cpu", "power"):
        (tmp_path / "sys/devices/system/node" / name).mkdir(parents=True)
    thp = tmp_path / "sys/kernel/mm/transparent_hugepage/enabled"
    thp.parent.mkdir(parents=True)
    thp.write_text("always [madvise] never\n")
    signals = read(host.sources(tmp_path, {}))
    assert signals["host.numa_nodes"].value == 2
    assert signals["host.hugepages"].value == "madvise"


def test_the_cpus_this_process_may_use_are_counted_by_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, cpus in ((0, "0-3,8\n"), (1, "4-7\n"), (2, "\n")):
        (tmp_path / f"sys/devices/system/node/node{number}").mkdir(parents=True)
        (tmp_path / f"sys/devices/system/node/node{number}/cpulist").write_text(cpus)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3, 8, 9})
    assert read(host.sources(tmp_path, {}))["host.numa_cpus"].value == {"0": 3, "1": 0}


def test_a_tree_without_any_of_it_is_reasons(tmp_path: Path) -> None:
    signals = read(host.sources(tmp_path, {"HOME": "/nowhere"}))
    absent = ("host.numa_nodes", "host.stuck_processes", "host.hugepages", "disk.home.free")
    assert {name for name in absent if signals[name].value is not None} == set()
    assert all(signals[name].reason for name in absent)


def test_the_clock_is_asked_and_not_set() -> None:
    assert host.clock_synchronized() in (True, False)


@each(
    ("text", "total"),
    [("TOTAL_ERR_FATAL 0\n", 0), ("Undefined 1\nTOTAL_ERR_COR 12\n", 12), ("", None), ("TOTAL", None)],
)
def test_the_kernels_total_of_pcie_errors(text: str, total: int | None) -> None:
    assert buses.aer_total(text) == total


@each("text", ["", "1", "1 (a", "1 (a) D 1", "1 (a) D 1 2 3 4 5 x"])
def test_half_a_stat_line_is_no_process(text: str) -> None:
    assert host.sleeper(text) is None


def test_huge_pages_set_aside_and_uptime(tmp_path: Path) -> None:
    for size, free in (("hugepages-2048kB", "3\n"), ("hugepages-1048576kB", "1\n")):
        (tmp_path / "sys/kernel/mm/hugepages" / size).mkdir(parents=True)
        (tmp_path / "sys/kernel/mm/hugepages" / size / "free_hugepages").write_text(free)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/uptime").write_text("12487.39 24000.00\n")
    signals = read(host.sources(tmp_path, {}))
    assert signals["host.hugepages_free"].value == 3 * (2 << 20) + (1 << 30)
    assert signals["host.uptime"].value == 12487.39
    (tmp_path / "sys/kernel/mm/hugepages/odd").mkdir()
    (tmp_path / "proc/uptime").write_text("soon\n")
    signals = read(host.sources(tmp_path, {}))
    assert signals["host.hugepages_free"].why == "failed"
    assert signals["host.uptime"].reason
