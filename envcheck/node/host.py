"""The host around the GPUs: processes, memory, disks, NUMA, the clock. Files and system calls only."""

import ctypes
import os
import re
import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from envcheck.node.signal_source import Source, fields, flag, listed, mapped, number, reading, string, text, whole, word
from envcheck.node.snapshot import Signal, unreadable

_KERNEL_MODULE = re.compile(r"^NVRM version:.*?Kernel Module\b.*?\s(?P<version>\d+\.\d+(?:\.\d+)?)\s", re.MULTILINE)
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD
_MOST_CPUS = 1 << 16
_OCTAL = re.compile(r"\\([0-7]{3})")
_LIBRARY_VERSION = re.compile(r"\.so\.(\d+\.\d+(?:\.\d+)?)$")
_PROCESSES = listed(fields(name=string, pid=whole))
_LOOK_AGAIN = 0.3
_TIME_ERROR = 5  # adjtimex(2): TIME_ERROR, the clock is not synchronised


class Mount(NamedTuple):
    """One line of /proc/self/mounts."""

    device: str
    path: str
    kind: str
    options: str


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
    """Return what reads NUMA nodes, stuck processes, hugepages, uptime, the clock and disks."""
    return {
        "host.numa_nodes": Source(
            whole, lambda: reading(root / "sys/devices/system/node", lambda nodes: len(_numbered(nodes)))
        ),
        "host.numa_cpus": Source(mapped(whole), lambda: reading(root / "sys/devices/system/node", _numa_cpus)),
        "host.stuck_processes": Source(_PROCESSES, lambda: reading(root / "proc", _stuck)),
        "host.hugepages": Source(text, lambda: _hugepages(root)),
        "host.hugepages_free": Source(number, lambda: _huge_free(root / "sys/kernel/mm/hugepages")),
        "host.uptime": Source(number, lambda: _uptime(root / "proc/uptime")),
        "clock.synchronized": Source(flag, clock_synchronized),
        **_disks(root, environ),
    }


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


def _hugepages(root: Path) -> Signal:
    path = root / "sys/kernel/mm/transparent_hugepage/enabled"
    modes = word(path)
    chosen = modes.partition("[")[2].partition("]")[0] if modes else ""
    if not chosen:
        return Signal(reason=f"{path} does not say", why="no-data", source=str(path))
    return Signal(chosen, source=str(path))


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


def _uptime(path: Path) -> Signal:
    words = (word(path) or "").split()
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
