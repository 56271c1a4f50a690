"""The host around the GPUs: processes, memory, disks, NUMA, the clock; whether it is a container; NVIDIA's toolkit."""

import ctypes
import json
import os
import platform
import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from envcheck.node import subprocesses
from envcheck.node.signal_source import (
    Source,
    fields,
    flag,
    listed,
    mapped,
    number,
    of_file,
    string,
    text,
    unlimited,
    version,
    whole,
    word,
)

_KERNEL_MODULE = re.compile(r"^NVRM version:.*?Kernel Module\b.*?\s(?P<version>\d+\.\d+(?:\.\d+)?)\s", re.MULTILINE)
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD
_MOST_CPUS = 1 << 16
_PROCESSES = listed(fields(name=string, pid=whole))
_CHOSEN = re.compile(r"\[(\w+)\]")
_GPU_MODULES = ("nvidia", "nouveau", "gdrdrv", "nv_peer_mem", "efa_nv_peermem")
Sources = dict[str, Source]
LOOK_AGAIN = 0.3
STAYS = 10.0  # a busy disk or a loaded machine holds sound processes for seconds
# cgroup v1 has no word for "no limit": it prints the largest page-aligned int64.
_V1_UNLIMITED = 1 << 62
_TOOLS = ("nvidia-ctk", "nvidia-container-cli")
# Later directories win over earlier ones (CDI specification, "Spec directories").
_CDI = ("etc/cdi", "var/run/cdi")
_VERSION = re.compile(r"\d+\.\d+\.\d+\S*")
_KIND = re.compile(r"^\W*kind\W+(nvidia\.com/[\w.-]+)", re.MULTILINE)
_DRIVER = re.compile(r"lib(?:cuda|nvidia-ml)\.so\.(\d+\.\d+(?:\.\d+)?)\b")
# A device node of a specification, the keys in either order: its number, and which of unified memory's it is.
_UVM = re.compile(
    r'\bpath"?: *"?/dev/nvidia-uvm(?:-tools)?\b[\s",]*major"?: *(?P<after>\d+)'
    r'|\bmajor"?: *(?P<before>\d+)[\s",]*(?:minor"?: *\d+[\s",]*)?path"?: *"?/dev/nvidia-uvm\b'
)
_SPECIFICATIONS = listed(fields(path=text, kind=string, drivers=listed(version)))
_RUNTIMES = fields(runtimes=listed(text))
_TIME_ERROR = 5  # adjtimex(2): TIME_ERROR, the clock is not synchronised


def kernel_module(text: str) -> tuple[str, str] | tuple[None, None]:
    """Read off /proc/driver/nvidia/version the kernel module's version, and whether it is "open" or "proprietary"."""
    match = _KERNEL_MODULE.search(text + "\n")
    return (match["version"], "open" if "Open Kernel Module" in match[0] else "proprietary") if match else (None, None)


def meminfo(text: str) -> dict[str, int]:
    """Read /proc/meminfo into bytes; lines without a kB figure are left out."""
    fields = (line.replace(":", " ").split() for line in text.splitlines())
    return {f[0]: int(f[1]) * 1024 for f in fields if len(f) == 3 and f[1].isdecimal() and f[2] == "kB"}  # noqa: PLR2004


def after(text: str, name: str, sign: str) -> str | None:
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
    ends = [(first, last or first) for first, _, last in [part.partition("-") for part in text.strip().split(",")]]
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


def driver_sources(root: Path) -> Sources:
    """Return what reads the kernel module's version, and whether it is the open one."""
    file = root / "proc/driver/nvidia/version"
    return {
        "driver.kernel": of_file(version, file, lambda said: kernel_module(said)[0]),
        "driver.kernel_flavour": of_file(text, file, lambda said: kernel_module(said)[1]),
    }


def sources(root: Path, environ: Mapping[str, str]) -> Sources:
    """Return what reads the host itself, its NUMA nodes, processes, memory, limits, clock and disks."""
    system, nodes, cpus = platform.uname(), root / "sys/devices/system/node", root / "proc/cpuinfo"
    huge, pages = root / "sys/kernel/mm/transparent_hugepage/enabled", root / "sys/kernel/mm/hugepages"
    limits, processes, shared = root / "proc/self/limits", root / "proc", root / "dev/shm"
    # Of a driver in a container of its own first (GPU operator).
    managers = [root / at / "usr/share/nvidia/nvswitch/fabricmanager.cfg" for at in ("run/nvidia/driver", ".")]
    return {
        "host.name": Source(text, lambda: system.node or None, "uname"),
        "host.arch": Source(text, lambda: system.machine, "uname"),
        "host.kernel": Source(text, lambda: system.release, "uname"),
        "host.cpus": Source(whole, lambda: len(os.sched_getaffinity(0)), "sched_getaffinity", "CPUs"),
        "host.product": of_file(text, root / "sys/class/dmi/id/product_name", str.strip),
        "host.os": of_file(text, root / "etc/os-release", lambda said: after(said, "PRETTY_NAME", "=")),
        "host.cpu": of_file(text, cpus, lambda said: after(said, "model name", ":")),  # Arm's kernels give none
        "host.hypervisor": of_file(flag, cpus, hypervisor),
        "host.memory_total": of_file(number, root / "proc/meminfo", lambda said: meminfo(said).get("MemTotal"), "B"),
        "host.fabric_mode": Source(text, lambda: _fabric_mode(managers), managers[-1]),
        "host.gpu_modules": of_file(listed(text), root / "proc/modules", gpu_modules),
        "host.hugepages": of_file(text, huge, lambda said: _CHOSEN.findall(said)[0]),
        "host.hugepages_free": Source(number, lambda: _huge_free(pages), pages, "B"),
        "host.uptime": of_file(number, root / "proc/uptime", lambda said: float(said.split()[0]), "s"),
        "host.numa_nodes": Source(whole, lambda: len(_numbered(nodes)), nodes),
        "host.numa_cpus": Source(mapped(whole), lambda: _numa_cpus(nodes), nodes),
        "host.stuck_processes": Source(_PROCESSES, lambda: _stuck(processes), processes, longer=STAYS),
        "limits.memlock": of_file(unlimited, limits, lambda said: soft_limit(said, "Max locked memory"), "B"),
        "limits.nofile": of_file(unlimited, limits, lambda said: soft_limit(said, "Max open files"), "files"),
        "shm.total": Source(number, lambda: shutil.disk_usage(shared).total, shared, "B"),
        "clock.synchronized": Source(flag, clock_synchronized, "adjtimex"),
        **_disks(root, environ),
    }


def _fabric_mode(files: list[Path]) -> str | None:
    file = next(filter(os.path.isfile, files), files[-1])  # Path.is_file raises in a mount that is dead
    return after(file.read_text(errors="replace"), "FABRIC_MODE", "=")


def _numa_cpus(nodes: Path) -> dict[str, int]:
    """Return, by node, how many of its CPUs this process may use; a node of memory alone has none to use."""
    allowed = os.sched_getaffinity(0)
    cpus = {number: cpu_list(word(node / "cpulist") or "") for number, node in _numbered(nodes).items()}
    return {number: len(cores & allowed) for number, cores in cpus.items() if cores}


def _numbered(nodes: Path) -> dict[str, Path]:
    numbered = {node.name[4:]: node for node in nodes.iterdir() if node.name.startswith("node")}
    return {number: numbered[number] for number in sorted(numbered) if number.isdecimal()}


def _stuck(processes: Path) -> list[dict[str, Any]]:
    """Return processes that stay in uninterruptible sleep, by pid and name; kernel threads are left out.

    Every process that waits for a disk is there for a moment, and again a moment later: it has been away if its count
    of switches has grown. Only where one stays does this take its time.
    """
    stuck = _asleep(processes, (p.name for p in processes.iterdir() if p.name.isdecimal()))
    until = time.monotonic() + STAYS
    while stuck and time.monotonic() < until:
        time.sleep(LOOK_AGAIN)
        stuck = {pid: now for pid, now in _asleep(processes, stuck).items() if now == stuck[pid]}
    return [{"pid": int(pid), "name": name} for pid, (name, _) in stuck.items()]


def _asleep(processes: Path, pids: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return the name of each process that is asleep, with how often it has gone to sleep."""
    names = ((pid, sleeper(word(processes / pid / "stat") or "")) for pid in pids)
    return {pid: (name, _switches(processes / pid / "status")) for pid, name in names if name is not None}


def _switches(status: Path) -> str:
    try:
        said = status.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found = re.search(r"^voluntary_ctxt_switches:\s*(\d+)", said, re.MULTILINE)
    return found[1] if found else ""


def _huge_free(sizes: Path) -> int:
    """Return the bytes set aside as huge pages that nobody uses, over all sizes: no other process can have them."""
    free = {size.name: word(size / "free_hugepages") for size in sizes.iterdir()}
    return sum(int(name.split("-")[1].removesuffix("kB")) * 1024 * int(pages or "") for name, pages in free.items())


class _Timex(ctypes.Structure):
    """As much of struct timex as nobody looks into; the kernel writes no more than 208 bytes."""

    _fields_ = (("modes", ctypes.c_uint), ("rest", ctypes.c_char * 508))


def clock_synchronized() -> bool:
    """Ask the kernel (adjtimex) whether something keeps its clock; asking changes nothing."""
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(_Timex()))
    if state < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return bool(state != _TIME_ERROR)


def _disks(root: Path, environ: Mapping[str, str]) -> Sources:
    """Return what reads the bytes free where work and caches go; each may be on a server of its own that is gone."""

    def free(place: Callable[[], Path], named: str) -> Source:
        return Source(number, lambda: shutil.disk_usage(root / str(place()).lstrip("/")).free, named, "B")

    temporary, home = environ.get("TMPDIR", "/tmp"), environ.get("HOME", "/root")  # noqa: S108 (where others write)
    return {
        "disk.tmp.free": free(lambda: Path(temporary), temporary),
        "disk.home.free": free(lambda: Path("/", home.lstrip("/")), home),
        "disk.cwd.free": free(Path.cwd, "the working directory"),
    }


def memory_limit(text: str) -> int | str:
    """Read memory.max (cgroup v2) or memory.limit_in_bytes (v1), in bytes. Raises ValueError on anything else."""
    word = text.strip()
    if word == "max" or (word.isdecimal() and int(word) >= _V1_UNLIMITED):
        return "unlimited"
    return int(word)


def container_sources(root: Path, environ: Mapping[str, str]) -> dict[str, Source]:
    """Return what reads the container, and toolkit.tools, engines, cdi and docker; absent is what is not installed."""
    docker, cgroup = root / "etc/docker/daemon.json", root / "sys/fs/cgroup"
    marks = "/.dockerenv, /run/.containerenv, environment, /run/systemd/container, /proc/1/cgroup"

    def tools() -> dict[str, str]:
        return {name: _version(path) for name in _TOOLS if (path := _which(name, root, environ))}

    def engines() -> list[str]:
        return [name for name in ("docker", "podman", "nerdctl", "apptainer", "enroot") if _which(name, root, environ)]

    def settings() -> dict[str, Any]:
        """Return docker's runtimes and the default one; settings that are no JSON object keep it from starting."""
        said = {**json.loads(docker.read_text(errors="replace"))} if docker.exists() else {}
        return {"runtimes": sorted(said.get("runtimes") or {}), "default": said.get("default-runtime")}

    return {
        "container.runtime": Source(text, lambda: runtime(root, environ), marks),
        "container.memory_limit": Source(unlimited, lambda: memory_limit(_limit_file(root).read_text()), cgroup, "B"),
        "toolkit.tools": Source(mapped(text), tools, "PATH"),
        "toolkit.engines": Source(listed(text), engines, "PATH"),
        "toolkit.cdi": Source(_SPECIFICATIONS, lambda: _specifications(root), ", ".join(f"/{one}" for one in _CDI)),
        "toolkit.cdi_uvm": Source(mapped(whole), lambda: _moved(root), "/proc/devices"),
        "toolkit.docker": Source(_RUNTIMES, settings, docker),
    }


def runtime(root: Path, environ: Mapping[str, str]) -> str:
    """Name the container runtime by the marks each leaves: docker, podman, kubernetes …; "none" outside."""
    # systemd writes there which container it runs in (lxc, systemd-nspawn). WSL2 writes wsl, and is no container.
    told, init = word(root / "run/systemd/container") or "", word(root / "proc/1/cgroup") or ""
    named = environ.get("container", "" if told == "wsl" else told)
    marks = (
        ("kubernetes", "KUBERNETES_SERVICE_HOST" in environ),
        ("apptainer", "APPTAINER_CONTAINER" in environ or "SINGULARITY_CONTAINER" in environ),
        ("podman", (root / "run/.containerenv").exists()),
        ("docker", (root / ".dockerenv").exists()),
        (named, named != ""),
        *((name, f"/{name}" in init) for name in ("kubepods", "docker", "containerd", "lxc")),
    )
    return next((name for name, there in marks if there), "none")


def _limit_file(root: Path) -> Path:
    """Return the limit of cgroup v1, or of this process's own group, or of the top where that is hidden."""
    cgroup, v1 = root / "sys/fs/cgroup", "memory/memory.limit_in_bytes"
    groups = (word(root / "proc/self/cgroup") or "").splitlines()
    own = next((line.removeprefix("0::/") for line in groups if line.startswith("0::/")), "").strip("/")
    places = (cgroup / v1, cgroup / own / "memory.max")
    return next((place for place in places if place.exists()), cgroup / "memory.max")


def _which(name: str, root: Path, environ: Mapping[str, str]) -> Path | None:
    places = [str(root / place.lstrip("/")) for place in environ.get("PATH", "").split(":") if place.startswith("/")]
    path = shutil.which(name, path=":".join(places)) if places else None
    return Path(path) if path else None


def _version(tool: Path) -> str:
    try:
        match = _VERSION.search(subprocesses.output(tool, "--version"))
    except OSError as error:
        return f"unknown: {error.strerror}"
    return match[0] if match else "unknown: it does not say"


def _cdi_texts(root: Path) -> dict[str, str]:
    files = [p for place in _CDI if (root / place).is_dir() for p in sorted((root / place).iterdir())]
    read = (p for p in files if p.suffix in (".yaml", ".json"))
    return {f"/{p.relative_to(root)}": p.read_text(errors="replace") for p in read}


def _specifications(root: Path) -> list[dict[str, Any]]:
    """Return each specification of NVIDIA's: its file, its kind, and the driver whose files it names."""
    return [
        {"path": path, "kind": kind[1], "drivers": sorted(set(_DRIVER.findall(text)))}
        for path, text in _cdi_texts(root).items()
        if (kind := _KIND.search(text))
    ]


def _moved(root: Path) -> dict[str, int]:
    """Return the specifications that give /dev/nvidia-uvm another number than the kernel has, and which."""
    now = re.search(r"^ *(\d+) nvidia-uvm$", (root / "proc/devices").read_text(), re.MULTILINE)
    named = ((path, _UVM.search(text)) for path, text in _cdi_texts(root).items())
    given = {path: int(match["after"] or match["before"]) for path, match in named if match}
    return {path: major for path, major in given.items() if now and major != int(now[1])}
