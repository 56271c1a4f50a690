"""What Linux says of itself in text: pure parsers of /proc, /etc and the loader's cache."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_KERNEL_MODULE: Final = re.compile(
    r"^NVRM version:.*?Kernel Module\b.*?\s(?P<version>\d+\.\d+(?:\.\d+)?)\s", re.MULTILINE
)
_KERNEL_THREAD: Final = 0x00200000  # PF_KTHREAD
_MOST_CPUS: Final = 1 << 16
_OCTAL: Final = re.compile(r"\\([0-7]{3})")
_LIBRARY_VERSION: Final = re.compile(r"\.so\.(\d+\.\d+(?:\.\d+)?)$")


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
