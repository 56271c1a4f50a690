"""Docker gives a container 64 MB of /dev/shm, and DataLoader workers and NCCL die in it with a bus error.

NCCL says "unable to mmap" (NVIDIA/nccl#290, #342). It is asked inside the environment, as the host's is another.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View, failed, passed, undecided, warned, worst
from envcheck.checks.support import process_group

CHECK = Check(promise="shared memory has room for NCCL and DataLoader workers", level="static", limits=("shm-free",))

PATH = "/dev/shm"  # noqa: S108 (POSIX shared memory)
_HOST_PIDS = "pid:[4026531836]"  # Linux, include/linux/proc_ns.h: the namespace of the host itself
_OWN = "\nshm /dev/shm "  # /proc/self/mounts: so docker and podman call what a container has for itself, and pods share
_FIX = "start the container with --shm-size=8g or --ipc=host; in Kubernetes mount an emptyDir with medium: Memory there"


def measure(rank: Rank) -> Measured:
    """Return the bytes /dev/shm has, and how many of them are free; why no file can be made there, else."""
    try:
        state = os.statvfs(PATH)
        tempfile.TemporaryFile(dir=PATH).close()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            return {"rank": rank.rank, "error": error.strerror or str(error)}
    total, free = state.f_blocks * state.f_frsize, state.f_bavail * state.f_frsize
    sizes = {"rank": rank.rank, "total": total, "free": free}
    return sizes if 2 * free >= total else {**sizes, **_left()}


def _left() -> Measured:
    """Return the bytes there of files that no live process has open or mapped (left), and that one may have (unsure).

    NCCL and DataLoader workers map a file and close it. Who may not look into the processes of others cannot tell for
    files of users who run some, nor in a container whose /dev/shm may be the host's or its pod's for any.
    """
    among, init = os.path.realpath("/proc/self/ns/pid").endswith(_HOST_PIDS), Path("/proc/1")
    processes = [process for process in Path("/proc").iterdir() if process.name.isdecimal()]
    held: set[tuple[int, int]] = set()
    hidden: set[int] = set()
    for process in processes:
        try:
            held.update(_used(process))
        except PermissionError:  # noqa: PERF203 (each by itself)
            if not (among and process == init):  # the host's init is no job
                hidden.update(state.st_uid for state in _states([process]))
        except OSError:  # it is gone
            continue
    shared = "KUBERNETES_SERVICE_HOST" in os.environ or _OWN not in Path("/proc/self/mounts").read_text("utf-8")
    blind = init not in processes or (shared and not among)
    told = {"left": 0, "unsure": 0}
    for state in _states(Path(folder, name) for folder, _, names in os.walk(PATH) for name in names):
        if (state.st_dev, state.st_ino) not in held:
            told["unsure" if blind or state.st_uid in hidden else "left"] += state.st_blocks * 512
    return {**told}


def _used(process: Path) -> Iterator[tuple[int, int]]:
    """Yield device and inode of what a process has open or mapped there."""
    for link in (process / "fd").iterdir():
        with contextlib.suppress(OSError):  # it is closed again
            if str(link.readlink()).startswith(f"{PATH}/"):
                state = link.stat()
                yield state.st_dev, state.st_ino
    with (process / "maps").open(encoding="utf-8", errors="replace") as lines:
        for device, inode in (line.split(maxsplit=5)[3:5] for line in lines if f" {PATH}/" in line):
            yield os.makedev(*(int(part, 16) for part in device.split(":"))), int(inode)


def _states(paths: Iterable[Path]) -> Iterator[os.stat_result]:
    for path in paths:
        with contextlib.suppress(OSError):  # it is gone
            yield path.lstat()


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail below what NCCL's guide asks for, warn on a GPU node below what many workers need, or when it is full."""
    from envcheck.checks import limits

    if ranks and isinstance(ranks[0].get("error"), str):
        text, fix = f"no file can be made in {PATH}: {ranks[0]['error']}", f"mount a writable tmpfs there: {_FIX}"
        return failed(text, fix=fix, code="shm.unusable", culprit=PATH)
    total, free = (ranks[0].get("total"), ranks[0].get("free")) if ranks else (None, None)
    if total is None or free is None or not process_group.finite(total) or not process_group.finite(free):
        return undecided(
            "the size of /dev/shm was not measured", fix="mount a tmpfs at /dev/shm", code="shm.unmeasured"
        )
    floor, advice, room = (limits.limit("shm", "fail"), limits.limit("shm", "warn"), limits.limit("shm-free", "fail"))
    findings = []
    if total < floor.value:
        findings.append(_small(failed, "is too small", total, floor, free))
    elif view.mode == "gpu" and total < advice.value:
        findings.append(_small(warned, "is small for a GPU node", total, advice, free))
    if free < min(room.value, total):
        summary = f"too little of the {total / 2**20:,.0f} MiB of {PATH} is free"
        common: dict[str, Any] = {"value": free, "limit": room, "culprit": PATH, "total": total}
        findings.append(_full(summary, ranks[0], total - min(room.value, total), common))
    return worst(findings, otherwise=passed(f"{PATH} has room", value=total, limit=floor, free=free))


def _full(summary: str, told: Measured, most: float, common: dict[str, Any]) -> Outcome:
    """Fail where what ended jobs left is more than `most` bytes; what running ones hold comes free with their end."""
    left, unsure = (
        float(told[name]) if process_group.finite(told.get(name)) else math.nan for name in ("left", "unsure")
    )
    if left > most:
        text, fix = f"{summary}: ended jobs left {left / 2**20:,.0f} MiB", "remove what earlier jobs left in /dev/shm"
        return failed(text, fix=fix, code="shm.full", **common)
    if left + unsure <= most:
        text = f"{summary}: running jobs hold {(common['total'] - common['value'] - left - unsure) / 2**20:,.0f} MiB"
        return warned(text, fix="wait for their end, or let jobs use less", code="shm.held", **common)
    text, fix = f"{summary}: whether running jobs hold it cannot be seen", "look as root, on the host"
    return undecided(text, fix=f"{fix}: `fuser -v {PATH}/*`; remove what none holds", code="shm.unsure", **common)


def _small(judged: Callable[..., Outcome], summary: str, total: float, limit: Limit, free: float) -> Outcome:
    return judged(f"{PATH} {summary}", fix=_FIX, value=total, limit=limit, code="shm.small", culprit=PATH, free=free)
