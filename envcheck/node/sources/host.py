"""The host around the GPUs: PCI devices, processes, disks, NUMA, the clock. Files and system calls only."""

from __future__ import annotations

import ctypes
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from envcheck.node.parallel import Source
from envcheck.node.snapshot import Signal, unreadable
from envcheck.node.sources import proc
from envcheck.node.value_types import fields, flag, index, listed, mapped, maybe, number, string, text, whole

_NVIDIA: Final = "0x10de"
_DISPLAY: Final = ("0x0300", "0x0302")  # VGA and 3D controllers: GPUs, not their audio or switches
_BUS: Final = listed(fields(bus_id=text, driver=maybe(text), numa_node=maybe(index), aer=mapped(maybe(whole))))
_PROCESSES: Final = listed(fields(name=string, pid=whole))
_AER: Final = ("fatal", "nonfatal", "correctable")
_LOOK_AGAIN: Final = 0.3
_TIME_ERROR: Final = 5  # adjtimex(2): TIME_ERROR, the clock is not synchronised


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
        "aer": {kind: proc.aer_total(_word(device / f"aer_dev_{kind}") or "") for kind in _AER},
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
    cpus = {number: proc.cpu_list(_word(node / "cpulist") or "") for number, node in _numbered(nodes).items()}
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
    stats = ((pid, proc.process_stat(_word(processes / pid / "stat") or "")) for pid in pids)
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
