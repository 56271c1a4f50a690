"""The host around the GPUs, read off small trees that look like one."""

import os
import shutil
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envcheck.node import buses, host, signal_source
from tests.builders import plant
from tests.node.conftest import read
from tests.tables import each

STAT = "{pid} ({name}) {state} 1 2 3 4 5 {flags} 0 0\n"


def process(root: Path, pid: int, name: str, state: str, flags: int = 0) -> None:
    plant(root, {f"proc/{pid}/stat": STAT.format(pid=pid, name=name, state=state, flags=flags)})


def device(root: Path, bus: str, vendor: str, kind: str, driver: str | None) -> Path:
    path = root / "sys/bus/pci/devices" / bus
    plant(path, {"vendor": f"{vendor}\n", "class": f"{kind}\n", "numa_node": "1\n"})
    if driver:
        (root / "drivers" / driver).mkdir(parents=True, exist_ok=True)
        (path / "driver").symlink_to(root / "drivers" / driver)
    return path


def test_gpus_on_the_bus_are_nvidias_display_controllers_alone(tmp_path: Path) -> None:
    gpu = device(tmp_path, "0000:1B:00.0", "0x10de", "0x030200", "nvidia")
    plant(gpu, {"aer_dev_correctable": "RxErr 3\nTOTAL_ERR_COR 7\n", "device": "0x2901\n"})
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
    plant(tmp_path, {"sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n"})
    signals = read(host.sources(tmp_path, {}))
    assert signals["host.numa_nodes"].value == 2
    assert signals["host.hugepages"].value == "madvise"


def test_the_cpus_this_process_may_use_are_counted_by_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, cpus in ((0, "0-3,8\n"), (1, "4-7\n"), (2, "\n")):
        plant(tmp_path, {f"sys/devices/system/node/node{number}/cpulist": cpus})
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
        plant(tmp_path, {f"sys/kernel/mm/hugepages/{size}/free_hugepages": free})
    plant(tmp_path, {"proc/uptime": "12487.39 24000.00\n"})
    for at, mode in (("", 0), ("run/nvidia/driver", 1)):
        plant(tmp_path / at, {"usr/share/nvidia/nvswitch/fabricmanager.cfg": f"#FABRIC_MODE=2\nFABRIC_MODE={mode}\n"})
        assert read(host.sources(tmp_path, {}))["host.fabric_mode"].value == str(mode)
    shutil.rmtree(tmp_path / "run/nvidia/driver")
    (tmp_path / "run/nvidia/driver").symlink_to("driver")  # ELOOP: nobody can enter it, root neither
    signals = read(host.sources(tmp_path, {}))
    assert signals["host.fabric_mode"].value == "0"
    assert signals["host.hugepages_free"].value == 3 * (2 << 20) + (1 << 30)
    assert signals["host.uptime"].value == 12487.39
    (tmp_path / "sys/kernel/mm/hugepages/odd").mkdir()
    (tmp_path / "proc/uptime").write_text("soon\n")
    signals = read(host.sources(tmp_path, {}))
    assert signals["host.hugepages_free"].why == "failed"
    assert signals["host.uptime"].reason


PROPRIETARY = """NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023
GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)
"""
OPEN = """NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.35.03  Release Build  (dvs-builder@U16)
GCC version:  gcc version 13.2.0
"""


def test_the_kernel_module_and_which_flavour_it_is() -> None:
    assert host.kernel_module(PROPRIETARY) == ("535.104.05", "proprietary")
    assert host.kernel_module(OPEN) == ("560.35.03", "open")
    assert host.kernel_module("GCC version: 12.3.0") == (None, None)


@given(st.dictionaries(st.from_regex(r"[A-Z][A-Za-z()_]{0,20}", fullmatch=True), st.integers(0, 1 << 50)))
def test_meminfo_is_read_in_bytes(fields: dict[str, int]) -> None:
    text = "".join(f"{name}:{kib:>16} kB\n" for name, kib in fields.items()) + "HugePages_Total:       0\n"
    assert host.meminfo(text) == {name: kib * 1024 for name, kib in fields.items()}


@given(st.text())
def test_no_text_breaks_a_parser(text: str) -> None:
    host.kernel_module(text)
    assert all(size >= 0 for size in host.meminfo(text).values())
    host.after(text, "model name", ":")
    host.soft_limit(text, "Max locked memory")
    host.gpu_modules(text)
    host.hypervisor(text)
    host.cached_libraries(text.encode(), "libcuda.so.1")
    host.cpu_list(text)


@each(
    ("text", "cpus"),
    [("0-2,5\n", {0, 1, 2, 5}), ("7", {7}), ("", set()), ("0-x", set()), ("3-1", set()), ("0-99999999", set())],
)
def test_a_list_of_cpus(text: str, cpus: set[int]) -> None:
    assert host.cpu_list(text) == cpus


def test_names_of_cpu_os_modules_and_libraries() -> None:
    assert host.after("processor : 0\nmodel name\t: AMD EPYC 9654\n", "model name", ":") == "AMD EPYC 9654"
    assert host.after("processor : 0\n", "model name", ":") is None
    assert host.hypervisor("processor : 0\nflags\t\t: fpu hypervisor sse\n") is True
    assert (host.hypervisor("flags\t\t: fpu sse\n"), host.hypervisor("Features : fp\n")) == (False, None)
    debian = 'NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n'
    assert host.after(debian, "PRETTY_NAME", "=") == "Debian GNU/Linux 12 (bookworm)"
    assert host.gpu_modules("nvidia 1 2 -\nnouveau 1 0 -\nxfs 1 -\n") == ["nouveau", "nvidia"]
    cache = b"glibc-ld.so.cache1.1\0libcuda.so.1\0/usr/lib/libcuda.so.1\0/usr/lib/libcuda.so\0"
    assert host.cached_libraries(cache, "libcuda.so.1") == ["/usr/lib/libcuda.so.1"]


def test_cgroup_limits_of_both_versions() -> None:
    assert host.memory_limit("max\n") == "unlimited"
    assert host.memory_limit("9223372036854771712\n") == "unlimited"
    assert host.memory_limit("2147483648\n") == 1 << 31
    with pytest.raises(ValueError, match="x"):
        host.memory_limit("x")


@each(
    ("environ", "file", "said", "name"),
    [
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, ".dockerenv", "", "kubernetes"),
        ({"APPTAINER_CONTAINER": "/x.sif"}, "nothing", "", "apptainer"),
        ({}, "run/.containerenv", "", "podman"),
        ({}, ".dockerenv", "", "docker"),
        ({"container": "lxc"}, "nothing", "", "lxc"),
        ({}, "proc/1/cgroup", "1:name=systemd:/docker/abc", "docker"),
        ({}, "run/systemd/container", "lxc\n", "lxc"),
        ({}, "run/systemd/container", "wsl\n", "none"),
        ({}, "nothing", "", "none"),
    ],
)
def test_each_container_runtime_leaves_its_mark(
    tmp_path: Path, environ: dict[str, str], file: str, said: str, name: str
) -> None:
    root = tmp_path / f"{file} {name} {len(environ)}".replace("/", "-")
    plant(root, {file: said})
    assert host.container_sources(root, environ)["container.runtime"].signal().value == name
