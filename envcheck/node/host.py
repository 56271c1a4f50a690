"""The host around the GPUs: processes, memory, disks, NUMA, the clock. Files and system calls only."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from envcheck.node.signal_source import Source, fields, flag, index, listed, mapped, maybe, number, string, text, whole
from envcheck.node.snapshot import Signal, unreadable

_KERNEL_MODULE: Final = re.compile(
    r"^NVRM version:.*?Kernel Module\b.*?\s(?P<version>\d+\.\d+(?:\.\d+)?)\s", re.MULTILINE
)
_KERNEL_THREAD: Final = 0x00200000  # PF_KTHREAD
_MOST_CPUS: Final = 1 << 16
_OCTAL: Final = re.compile(r"\\([0-7]{3})")
_LIBRARY_VERSION: Final = re.compile(r"\.so\.(\d+\.\d+(?:\.\d+)?)$")
_NVIDIA: Final = "0x10de"
_DISPLAY: Final = ("0x0300", "0x0302")  # VGA and 3D controllers: GPUs, not their audio or switches
_BUS: Final = listed(fields(bus_id=text, driver=maybe(text), numa_node=maybe(index), aer=mapped(maybe(whole))))
_PROCESSES: Final = listed(fields(name=string, pid=whole))
_AER: Final = ("fatal", "nonfatal", "correctable")
_LOOK_AGAIN: Final = 0.3
_TIME_ERROR: Final = 5  # adjtimex(2): TIME_ERROR, the clock is not synchronised


class KernelModule(NamedTuple):
    """The NVIDIA kernel module: its version, and whether it is the open one."""

    version: str
    open: bool


class Mount(NamedTuple):
    """One line of /proc/self/mounts."""

    device: str
    path: str
    kind: str
    options: str


class Process(NamedTuple):
    """A process as /proc/PID/stat shows it. `kernel`: a thread of the kernel's own."""

    name: str
    state: str
    kernel: bool


def kernel_module(text: str) -> KernelModule | None:
    """Read /proc/driver/nvidia/version."""
    match = _KERNEL_MODULE.search(text + "\n")
    return KernelModule(match["version"], "Open Kernel Module" in match[0]) if match else None


def meminfo(text: str) -> dict[str, int]:
    """Read /proc/meminfo into bytes; lines without a kB figure are left out."""
    fields = (line.replace(":", " ").split() for line in text.splitlines())
    return {f[0]: int(f[1]) * 1024 for f in fields if len(f) == 3 and f[1].isdecimal() and f[2] == "kB"}  # noqa: PLR2004


def cpu_model(text: str) -> str | None:
    """Read the CPU's name off /proc/cpuinfo; Arm kernels give none."""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    return None


def soft_limit(text: str, name: str) -> int | str | None:
    """Read one soft limit off /proc/self/limits, e.g. "Max locked memory"; "unlimited" stays a word."""
    line = next((line for line in text.splitlines() if line.startswith(name)), None)
    words = line[len(name) :].split() if line else []
    if not words:
        return None
    return int(words[0]) if words[0].isdecimal() else words[0]


def mounts(text: str) -> list[Mount]:
    """Read /proc/self/mounts, whose paths escape blanks in octal."""
    rows = (line.split() for line in text.splitlines())
    return [Mount(_unescape(r[0]), _unescape(r[1]), r[2], r[3]) for r in rows if len(r) >= 4]  # noqa: PLR2004


def _unescape(path: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), path)


def process_stat(text: str) -> Process | None:
    """Read /proc/PID/stat, whose name stands in parentheses and may hold anything."""
    name, after_name = text.partition("(")[2].rpartition(")")[::2]
    fields = after_name.split()
    if len(fields) < 7 or not fields[6].isdecimal():  # noqa: PLR2004 (state, ppid, pgrp, session, tty, tpgid, flags)
        return None
    return Process(name, fields[0], bool(int(fields[6]) & _KERNEL_THREAD))


def cpu_list(text: str) -> set[int]:
    """Parse the kernel's "0-3,8"; an invalid list gives no CPUs."""
    spans = [part.partition("-") for part in text.strip().split(",")]
    ends = [(first, last or first) for first, _, last in spans]
    if not all(a.isdecimal() and b.isdecimal() and int(b) < _MOST_CPUS for a, b in ends):
        return set()
    return {cpu for a, b in ends for cpu in range(int(a), int(b) + 1)}


def aer_total(text: str) -> int | None:
    """Read the TOTAL line of aer_dev_fatal and its like; None where the kernel does not count."""
    words = next((line.split() for line in reversed(text.splitlines()) if line.startswith("TOTAL")), [])
    return int(words[1]) if len(words) > 1 and words[1].isdecimal() else None


def modules(text: str) -> list[str]:
    """Read the names off /proc/modules, sorted."""
    return sorted({line.split()[0] for line in text.splitlines() if line.strip()})


def os_name(text: str) -> str | None:
    """Read PRETTY_NAME off /etc/os-release."""
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key == "PRETTY_NAME" and value.strip("\"'"):
            return value.strip("\"'")
    return None


def cached_libraries(cache: bytes, name: str) -> list[str]:
    """Return the paths /etc/ld.so.cache knows for a library, in its order."""
    ending = f"/{name}".encode()
    return [entry.decode(errors="replace") for entry in cache.split(b"\0") if entry.endswith(ending)]


def library_version(path: str) -> str | None:
    """Return 535.104.05 for a resolved path …/libcuda.so.535.104.05, None where the file name has no version."""
    match = _LIBRARY_VERSION.search(path)
    return match[1] if match else None


def sources(root: Path, environ: Mapping[str, str]) -> dict[str, Source]:
    """Return what reads the GPUs on the bus, NUMA nodes, stuck processes, hugepages, uptime, the clock and disks."""
    return {
        "pci.gpus": Source(_BUS, lambda: _listed(root / "sys/bus/pci/devices", _gpus)),
        "host.numa_nodes": Source(whole, lambda: _listed(root / "sys/devices/system/node", _numa_nodes)),
        "host.numa_cpus": Source(mapped(whole), lambda: _listed(root / "sys/devices/system/node", _numa_cpus)),
        "host.stuck_processes": Source(_PROCESSES, lambda: _listed(root / "proc", _stuck)),
        "host.hugepages": Source(text, lambda: _hugepages(root)),
        "host.hugepages_free": Source(number, lambda: _huge_free(root / "sys/kernel/mm/hugepages")),
        "host.uptime": Source(number, lambda: _uptime(root / "proc/uptime")),
        "clock.synchronized": Source(flag, clock_synchronized),
        **_disks(root, environ),
    }


def _listed(path: Path, read: Callable[[Path], Any]) -> Signal:
    try:
        return Signal(read(path), source=str(path))
    except OSError as error:
        return unreadable(error, path)


def _gpus(devices: Path) -> list[dict[str, Any]]:
    """Return NVIDIA's display controllers: bus_id, driver, numa_node and, where the kernel counts them, AER errors."""
    nvidia = [d for d in sorted(devices.iterdir()) if _word(d / "vendor") == _NVIDIA]
    return [_gpu(d) for d in nvidia if (_word(d / "class") or "").startswith(_DISPLAY)]


def _gpu(device: Path) -> dict[str, Any]:
    driver, numa = device / "driver", _word(device / "numa_node")
    return {
        "bus_id": device.name.lower(),
        "driver": driver.resolve().name if driver.exists() else None,
        "numa_node": int(numa) if numa and numa.lstrip("-").isdecimal() else None,
        "aer": {kind: aer_total(_word(device / f"aer_dev_{kind}") or "") for kind in _AER},
    }


def _word(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def _numa_nodes(nodes: Path) -> int:
    return len(_numbered(nodes))


def _numa_cpus(nodes: Path) -> dict[str, int]:
    """Return, by node, how many of its CPUs this process may use; a node of memory alone has none to use."""
    allowed = os.sched_getaffinity(0)
    cpus = {number: cpu_list(_word(node / "cpulist") or "") for number, node in _numbered(nodes).items()}
    return {number: len(cores & allowed) for number, cores in cpus.items() if cores}


def _numbered(nodes: Path) -> dict[str, Path]:
    numbered = {node.name[4:]: node for node in nodes.iterdir() if node.name.startswith("node")}
    return {number: numbered[number] for number in sorted(numbered) if number.isdecimal()}


def _stuck(processes: Path) -> list[dict[str, Any]]:
    """Return processes in uninterruptible sleep on two looks, by pid and name; kernel threads are left out.

    Every process that waits for a disk is there for a moment: one look says nothing.
    """
    first = _asleep(processes, (p.name for p in processes.iterdir() if p.name.isdecimal()))
    if not first:
        return []
    time.sleep(_LOOK_AGAIN)
    return [{"pid": int(pid), "name": name} for pid, name in _asleep(processes, first).items()]


def _asleep(processes: Path, pids: Iterable[str]) -> dict[str, str]:
    stats = ((pid, process_stat(_word(processes / pid / "stat") or "")) for pid in pids)
    return {pid: s.name for pid, s in stats if s and s.state == "D" and not s.kernel}


def _hugepages(root: Path) -> Signal:
    path = root / "sys/kernel/mm/transparent_hugepage/enabled"
    word = _word(path)
    chosen = word.partition("[")[2].partition("]")[0] if word else ""
    if not chosen:
        return Signal(reason=f"{path} does not say", why="no-data", source=str(path))
    return Signal(chosen, source=str(path))


def _huge_free(sizes: Path) -> Signal:
    """Read the bytes set aside as huge pages that nobody uses, over all sizes: no other process can have them."""
    try:
        free = {size.name: _word(size / "free_hugepages") for size in sizes.iterdir()}
        total = sum(
            int(name.split("-")[1].removesuffix("kB")) * 1024 * int(pages or "") for name, pages in free.items()
        )
    except OSError as error:
        return unreadable(error, sizes, "B")
    except (ValueError, IndexError):
        return Signal(reason=f"{sizes} is not understood", why="failed", unit="B", source=str(sizes))
    return Signal(total, unit="B", source=str(sizes))


def _uptime(path: Path) -> Signal:
    words = (_word(path) or "").split()
    if not words or not words[0].replace(".", "", 1).isdecimal():
        return Signal(reason=f"{path} does not say", why="no-data", unit="s", source=str(path))
    return Signal(float(words[0]), unit="s", source=str(path))


class _Timex(ctypes.Structure):
    """As much of struct timex as nobody looks into; the kernel writes no more than 208 bytes."""

    _fields_ = (("modes", ctypes.c_uint), ("rest", ctypes.c_char * 508))


def clock_synchronized() -> Signal:
    """Ask the kernel (adjtimex) whether something keeps its clock; asking changes nothing."""
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(_Timex()))
    except (OSError, AttributeError) as error:
        return Signal(reason=f"adjtimex: {error}", why="failed", source="adjtimex")
    if state < 0:
        return unreadable(OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno())), "adjtimex")
    return Signal(state != _TIME_ERROR, source="adjtimex")


def _disks(root: Path, environ: Mapping[str, str]) -> dict[str, Source]:
    """Return what reads the bytes free where work and caches go; each may be on a server of its own that is gone."""
    home = environ.get("HOME", "/root").lstrip("/")
    temporary = Path(environ.get("TMPDIR", "/tmp"))  # noqa: S108 (where others write)
    return {
        "disk.tmp.free": Source(number, lambda: _free(root, temporary)),
        "disk.home.free": Source(number, lambda: _free(root, Path("/", home))),
        "disk.cwd.free": Source(number, lambda: _free(root, _working_directory())),
    }


def _working_directory() -> Path:
    try:
        return Path.cwd()
    except OSError:  # it was deleted: the signal says that it is not there
        return Path("/proc/self/cwd")


def _free(root: Path, place: Path) -> Signal:
    path = root / str(place).lstrip("/")
    try:
        return Signal(shutil.disk_usage(path).free, unit="B", source=str(place))
    except OSError as error:
        return unreadable(error, place, "B")
