"""The host around the GPUs: processes, memory, disks, NUMA, the clock. Files and system calls only."""

import ctypes
import functools
import os
import platform
import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from envcheck.node.signal_source import (
    Source,
    ValueType,
    fields,
    flag,
    listed,
    mapped,
    number,
    parsed,
    reading,
    string,
    text,
    unlimited,
    version,
    whole,
    word,
)
from envcheck.node.snapshot import Signal, unreadable

_KERNEL_MODULE = re.compile(r"^NVRM version:.*?Kernel Module\b.*?\s(?P<version>\d+\.\d+(?:\.\d+)?)\s", re.MULTILINE)
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD
_MOST_CPUS = 1 << 16
_LIBRARY_VERSION = re.compile(r"\.so\.(\d+\.\d+(?:\.\d+)?)$")
_PROCESSES = listed(fields(name=string, pid=whole))
_CHOSEN = re.compile(r"\[(\w+)\]")
_GPU_MODULES = ("nvidia", "nouveau", "gdrdrv", "nv_peer_mem", "efa_nv_peermem")
Sources = dict[str, Source]
_LOOK_AGAIN = 0.3
_TIME_ERROR = 5  # adjtimex(2): TIME_ERROR, the clock is not synchronised


def kernel_module(text: str) -> tuple[str, str] | tuple[None, None]:
    """Read off /proc/driver/nvidia/version the kernel module's version, and whether it is "open" or "proprietary"."""
    match = _KERNEL_MODULE.search(text + "\n")
    return (match["version"], "open" if "Open Kernel Module" in match[0] else "proprietary") if match else (None, None)


def meminfo(text: str) -> dict[str, int]:
    """Read /proc/meminfo into bytes; lines without a kB figure are left out."""
    fields = (line.replace(":", " ").split() for line in text.splitlines())
    return {f[0]: int(f[1]) * 1024 for f in fields if len(f) == 3 and f[1].isdecimal() and f[2] == "kB"}  # noqa: PLR2004


def cpu_model(text: str) -> str | None:
    """Read the CPU's name off /proc/cpuinfo; Arm kernels give none."""
    return _after(text, "model name", ":")


def os_name(text: str) -> str | None:
    """Read PRETTY_NAME off /etc/os-release."""
    return _after(text, "PRETTY_NAME", "=")


def _after(text: str, name: str, sign: str) -> str | None:
    """Return what follows a name in the first line that begins with it and says something."""
    lines = (line.partition(sign) for line in text.splitlines())
    values = (value.strip().strip("\"'") for key, _, value in lines if key.strip() == name)
    return next(filter(None, values), None)


def soft_limit(text: str, name: str) -> int | str | None:
    """Read one soft limit off /proc/self/limits, e.g. "Max locked memory"; "unlimited" stays a word."""
    line = next((line for line in text.splitlines() if line.startswith(name)), None)
    words = line[len(name) :].split() if line else []
    if not words:
        return None
    return int(words[0]) if words[0].isdecimal() else words[0]


def sleeper(text: str) -> str | None:
    """Return the name in /proc/PID/stat of a program in uninterruptible sleep; it may hold parentheses too."""
    name, after_name = text.partition("(")[2].rpartition(")")[::2]
    fields = after_name.split()
    if len(fields) < 7 or not fields[6].isdecimal():  # noqa: PLR2004 (state, ppid, pgrp, session, tty, tpgid, flags)
        return None
    return name if fields[0] == "D" and not int(fields[6]) & _KERNEL_THREAD else None


def cpu_list(text: str) -> set[int]:
    """Parse the kernel's "0-3,8"; an invalid list gives no CPUs."""
    spans = [part.partition("-") for part in text.strip().split(",")]
    ends = [(first, last or first) for first, _, last in spans]
    if not all(a.isdecimal() and b.isdecimal() and int(b) < _MOST_CPUS for a, b in ends):
        return set()
    return {cpu for a, b in ends for cpu in range(int(a), int(b) + 1)}


def gpu_modules(text: str) -> list[str]:
    """Read the names of GPU drivers and what belongs to them off /proc/modules, sorted."""
    names = {line.split()[0] for line in text.splitlines() if line.strip()}
    return sorted(name for name in names if name.startswith(_GPU_MODULES))


def hypervisor(text: str) -> bool | None:
    """Tell whether this is a virtual machine: x86 CPUs carry a flag for it, other kernels do not say."""
    flags = next((line.split() for line in text.splitlines() if line.startswith("flags")), None)
    return None if flags is None else "hypervisor" in flags


def cached_libraries(cache: bytes, name: str) -> list[str]:
    """Return the paths /etc/ld.so.cache knows for a library, in its order."""
    ending = f"/{name}".encode()
    return [entry.decode(errors="replace") for entry in cache.split(b"\0") if entry.endswith(ending)]


def library_version(path: str) -> str | None:
    """Return 535.104.05 for a resolved path …/libcuda.so.535.104.05, None where the file name has no version."""
    match = _LIBRARY_VERSION.search(path)
    return match[1] if match else None


# What one file says: the signal, its type, the file, how its text is read, and the unit.
FileRow = tuple[str, ValueType, str, Callable[[str], Any], str | None]
_FILES: tuple[FileRow, ...] = (
    ("host.os", text, "etc/os-release", os_name, None),
    ("host.cpu", text, "proc/cpuinfo", cpu_model, None),
    ("host.hypervisor", flag, "proc/cpuinfo", hypervisor, None),
    ("host.memory_total", number, "proc/meminfo", lambda said: meminfo(said).get("MemTotal"), "B"),
    ("host.gpu_modules", listed(text), "proc/modules", gpu_modules, None),
    ("host.hugepages", text, "sys/kernel/mm/transparent_hugepage/enabled", lambda said: _CHOSEN.findall(said)[0], None),
    ("host.uptime", number, "proc/uptime", lambda said: float(said.split()[0]), "s"),
    ("limits.memlock", unlimited, "proc/self/limits", lambda said: soft_limit(said, "Max locked memory"), "B"),
    ("limits.nofile", unlimited, "proc/self/limits", lambda said: soft_limit(said, "Max open files"), "files"),
)
_MODULE = "proc/driver/nvidia/version"
_DRIVER: tuple[FileRow, ...] = (
    ("driver.kernel", version, _MODULE, lambda said: kernel_module(said)[0], None),
    ("driver.kernel_flavour", text, _MODULE, lambda said: kernel_module(said)[1], None),
)


def _of_files(root: Path, rows: Iterable[FileRow]) -> Sources:
    return {
        name: Source(type_, functools.partial(parsed, root / file, parse, unit))
        for name, type_, file, parse, unit in rows
    }


def driver_sources(root: Path) -> Sources:
    """Return what reads the kernel module's version, and whether it is the open one."""
    return _of_files(root, _DRIVER)


def sources(root: Path, environ: Mapping[str, str]) -> Sources:
    """Return what reads the host itself, its NUMA nodes, processes, memory, limits, clock and disks."""
    system, nodes = platform.uname(), root / "sys/devices/system/node"
    return {
        "host.name": Source(text, lambda: _named(system.node)),
        "host.arch": Source(text, lambda: Signal(system.machine, source="uname")),
        "host.kernel": Source(text, lambda: Signal(system.release, source="uname")),
        "host.cpus": Source(whole, lambda: Signal(len(os.sched_getaffinity(0)), unit="CPUs", source="affinity")),
        **_of_files(root, _FILES),
        "host.numa_nodes": Source(whole, lambda: reading(nodes, lambda place: len(_numbered(place)))),
        "host.numa_cpus": Source(mapped(whole), lambda: reading(nodes, _numa_cpus)),
        "host.stuck_processes": Source(_PROCESSES, lambda: reading(root / "proc", _stuck)),
        "host.hugepages_free": Source(number, lambda: _huge_free(root / "sys/kernel/mm/hugepages")),
        "shm.total": Source(number, lambda: _space(root / "dev/shm", root / "dev/shm", free=False)),
        "clock.synchronized": Source(flag, clock_synchronized),
        **_disks(root, environ),
    }


def _named(node: str) -> Signal:
    return Signal(node, source="uname") if node else Signal(reason="uname: no host name", why="no-data")


def _numa_cpus(nodes: Path) -> dict[str, int]:
    """Return, by node, how many of its CPUs this process may use; a node of memory alone has none to use."""
    allowed = os.sched_getaffinity(0)
    cpus = {number: cpu_list(word(node / "cpulist") or "") for number, node in _numbered(nodes).items()}
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
    names = ((pid, sleeper(word(processes / pid / "stat") or "")) for pid in pids)
    return {pid: name for pid, name in names if name is not None}


def _huge_free(sizes: Path) -> Signal:
    """Read the bytes set aside as huge pages that nobody uses, over all sizes: no other process can have them."""
    try:
        free = {size.name: word(size / "free_hugepages") for size in sizes.iterdir()}
        total = sum(
            int(name.split("-")[1].removesuffix("kB")) * 1024 * int(pages or "") for name, pages in free.items()
        )
    except OSError as error:
        return unreadable(error, sizes, "B")
    except (ValueError, IndexError):
        return Signal(reason=f"{sizes} is not understood", why="failed", unit="B", source=str(sizes))
    return Signal(total, unit="B", source=str(sizes))


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


def _disks(root: Path, environ: Mapping[str, str]) -> Sources:
    """Return what reads the bytes free where work and caches go; each may be on a server of its own that is gone."""

    def free(place: Path) -> Signal:
        return _space(root / str(place).lstrip("/"), place)

    temporary, home = environ.get("TMPDIR", "/tmp"), environ.get("HOME", "/root")  # noqa: S108 (where others write)
    return {
        "disk.tmp.free": Source(number, lambda: free(Path(temporary))),
        "disk.home.free": Source(number, lambda: free(Path("/", home.lstrip("/")))),
        "disk.cwd.free": Source(number, lambda: free(_working_directory())),
    }


def _working_directory() -> Path:
    try:
        return Path.cwd()
    except OSError:  # it was deleted: the signal says that it is not there
        return Path("/proc/self/cwd")


def _space(path: Path, place: Path | str, *, free: bool = True) -> Signal:
    try:
        usage = shutil.disk_usage(path)
    except OSError as error:
        return unreadable(error, place, "B")
    return Signal(usage.free if free else usage.total, unit="B", source=str(place))
