"""Which limit of this process explains a failure, by what the failure says. The limits are those a rank inherits."""

from __future__ import annotations

import os
import re
import resource
import signal
from typing import Any

from envcheck.checks.support import control_group, process_group

_PROCESSES = re.compile(
    r"Resource temporarily unavailable|BlockingIOError|can't start new thread|[Tt]hread creation failed|pthread_create"
)
_MEMORY = re.compile(
    r"(?<!OutOf)MemoryError|annot allocate memory|can't allocate memory|bad_alloc|not enough memory"
    r"|failed to map segment|out of memory allocating"
)
# A rank that could start no thread hangs or takes others with it, and does not say so.
_LOST = re.compile(
    r"still running after|Connection closed by peer|died of SIG(?:ABRT|SEGV)|DataLoader worker .*exited unexpectedly"
)
_NAMED = " (limit: "
_kills_before: float = float("inf")  # until a group of ranks begins
_SHARED = "/dev/shm"  # noqa: S108 (it is looked at, not written to)
_LITTLE = 1 << 20  # bytes: what has less is full
_NO_LIMIT = 1 << 60  # version 1 has a number for it, 2^63 less a page
# A control group's limit, as its controller's file says it in version 2 and in version 1.
_FILES = {"pids": ("pids.max",), "memory": ("memory.max", "memory.limit_in_bytes")}
_EVENTS = {"pids": ("pids.events",), "memory": ("memory.events", "memory.oom_control")}
# What a failure says, the limit of the process, how a shell shows it, and the control group's controller.
_LIMITS: tuple[tuple[re.Pattern[str], int, str, str, str], ...] = (
    (_PROCESSES, resource.RLIMIT_NPROC, "processes and threads of this user", "ulimit -u", "pids"),
    (_MEMORY, resource.RLIMIT_AS, "bytes of address space", "ulimit -v", "memory"),
    # A thread needs room for its stack, and without it fails as if there were too many.
    (_PROCESSES, resource.RLIMIT_AS, "bytes of address space", "ulimit -v", ""),
    (
        re.compile(r"File too large|File size limit exceeded|SIGXFSZ|\bErrno 27\b"),
        *(resource.RLIMIT_FSIZE, "bytes in a file", "ulimit -f", ""),
    ),
    (re.compile(r"Too many open files"), resource.RLIMIT_NOFILE, "open files", "ulimit -n", ""),
    (re.compile(r"SIGXCPU"), resource.RLIMIT_CPU, "seconds of CPU time", "ulimit -t", ""),
)
_MORE = "give it more {0}: `{1}` of docker and podman, {2} in Kubernetes, the job's request in Slurm"
# What lifts a limit, by the words of a failure, or those that `explained` adds to it.
_LIFTED = [
    (re.compile(pattern), fix)
    for pattern, fix in (
        (r"[Uu]nable to find address for: lo\b", "start the loopback: `ip link set lo up`"),
        (r"pids\.max of the control group", _MORE.format("processes", "--pids-limit", "podPidsLimit of the kubelet")),
        (process_group.OUT_OF_GPU_MEMORY, "free the GPU's memory: end, or await, the processes that gpu-in-use names"),
        (r"see `ulimit -u`", "raise it with `ulimit -u`, of a container with `--ulimit nproc=-1`"),
        (r"see `ulimit -v`", "raise it with `ulimit -v unlimited`, or in /etc/security/limits.conf"),
        (r"memory\.\w+ of the control group|for lack of memory", _MORE.format("memory", "--memory", "limits.memory")),
        (r"are free in /dev/shm", "make room there: `--shm-size` of docker and podman, an emptyDir in Kubernetes"),
        (r"are free in ", "make room there, or set TMPDIR to a directory that has some"),
        (r"see `ulimit -n`", "raise it with `ulimit -n 65536`, of a container with `--ulimit nofile=65536`"),
        (r"see `ulimit -f`", "raise it with `ulimit -f unlimited`, of a container with `--ulimit fsize=-1`"),
        (r"see `ulimit -t`", "raise it with `ulimit -t unlimited`, of a container with `--ulimit cpu=-1`"),
    )
]


def ended(status: int) -> str:
    """Say how a process ended: with an exit code, or of a signal, whose number is negated."""
    if status >= 0:
        return f"exited with code {status}"
    return f"died of {signal.Signals(-status).name if -status in set(signal.Signals) else f'signal {-status}'}"


def explained(text: str) -> str:
    """Return a failure's text with the limits of this process that it may have met."""
    if _NAMED in text:
        return text
    causes = [cause for row in _LIMITS if row[0].search(text) for cause in _met(*row[1:])]
    lost, killed = _LOST.search(text) is not None, "SIGKILL" in text
    kills = _counted("memory", "oom_kill") if lost or killed else 0
    refused = _counted("pids", "max") if lost else 0
    if kills > (0 if killed else _kills_before):
        limit = _limit_text("memory") or "no limit of memory of its own"
        causes.append(f"the kernel ended processes of the control group for lack of memory ({kills}), {limit}")
    if refused and (limit := _limit_text("pids")):
        causes.append(f"the control group was refused processes or threads ({refused}), {limit}")
    causes += _full() if re.search(r"No space left on device|Disk quota exceeded|\bErrno 28\b|\bENOSPC\b", text) else []
    return f"{text}{_NAMED}{'; '.join(dict.fromkeys(causes))})" if causes else text


def lifted(text: str) -> str:
    """Return what lifts the limit that a failure's text names; "" where it names none."""
    return next((fix for pattern, fix in _LIFTED if pattern.search(text)), "")


def telling_line(log: str) -> str:
    """Return the last line of a log that a limit of this process explains; its last line where none does."""
    lines = log.strip().splitlines()
    limited = [line for line in lines if explained(line) != line]
    return next(reversed(limited or lines), "").strip()


def explained_in(measured: Any) -> Any:
    """Return what a rank measured with the limits named in each text that tells of one."""
    if isinstance(measured, str):
        return explained(measured)
    if isinstance(measured, dict):
        return {key: explained_in(value) for key, value in measured.items()}
    if isinstance(measured, (list, tuple)):
        return [explained_in(value) for value in measured]
    return measured


def remember_kills() -> None:
    """Take the kills so far as none of the group's that starts now."""
    global _kills_before  # noqa: PLW0603 (of this process alone, and its forks)
    _kills_before = _counted("memory", "oom_kill")


def _counted(controller: str, event: str) -> int:
    """Return how often something happened to this control group (cgroup-v2.rst, v1/memory.rst)."""
    places = control_group.directories(controller)
    texts = (control_group.text(place / name) for place in places for name in _EVENTS[controller])
    counts = (re.search(rf"^{event} (\d+)$", text, re.MULTILINE) for text in texts)
    return next((int(match[1]) for match in counts if match), 0)


def _full() -> list[str]:
    full = []
    for place in (os.getcwd(), _SHARED):  # noqa: PTH109 (no Path is made here)
        try:
            state = os.statvfs(place)
        except OSError:
            continue
        free = state.f_bavail * state.f_frsize
        if free < _LITTLE or (state.f_files and not state.f_favail):
            space = f"{free >> 10} KiB" if free < _LITTLE else "0 inodes"
            full.append(f"{space} are free in {place}, see `df`")
    return full


def _met(number: int, resource_name: str, shell: str, controller: str) -> list[str]:
    """Return the limits of this process and of its control group; of two on processes the one that is met first."""
    limit, limits = resource.getrlimit(number)[0], []
    if limit != resource.RLIM_INFINITY:
        limits.append((limit, f"{limit} {resource_name}, see `{shell}`"))
    if controller and (text := _limit_text(controller)):
        limits.append((int(text.rpartition(" ")[2]), text))
    return [text for _, text in (sorted(limits)[:1] if number == resource.RLIMIT_NPROC else limits)]


def _limit_text(controller: str) -> str:
    """Return the tightest limit that the control groups of a container or a job set; "" where they set none."""
    limits = [
        (int(value), name)
        for place in control_group.directories(controller)
        for name in _FILES[controller]
        if (value := control_group.text(place / name).strip()).isdecimal() and int(value) < _NO_LIMIT
    ]
    return "{1} of the control group is {0}".format(*min(limits)) if limits else ""
