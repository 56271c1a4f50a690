"""Docker gives a container 64 MB of /dev/shm, and DataLoader workers and NCCL die in it with a bus error.

NCCL says "unable to mmap" (NVIDIA/nccl#290, #342). It is asked inside the environment, as the host's is another.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View, failed, passed, undecided, warned, worst
from envcheck.checks.support import process_group

CHECK = Check(promise="shared memory has room for NCCL and DataLoader workers", level="static", limits=("shm-free",))

PATH = "/dev/shm"  # noqa: S108 (POSIX shared memory)
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
    return {"rank": rank.rank, "total": total, "free": free, "held": _held()}


def _held() -> int:
    """Return the bytes there of other users who run something now: their jobs share the machine."""
    running = {state.st_uid for state in _states(os.scandir("/proc"))} - {0, os.getuid()}
    files = (f"{directory}/{name}" for directory, _, names in os.walk(PATH) for name in names)
    return sum(state.st_blocks * 512 for state in _states(files) if state.st_uid in running)


def _states(paths: Iterable[str | os.DirEntry[str]]) -> Iterator[os.stat_result]:
    for path in paths:
        with contextlib.suppress(OSError):  # it is gone
            yield os.lstat(path)


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
        held: Any = ranks[0].get("held")
        if process_group.finite(held) and free + held >= min(room.value, total):
            text = f"{summary}: running jobs of other users hold {held / 2**20:,.0f} MiB"
            findings.append(warned(text, fix="wait for their end, or let jobs use less", code="shm.held", **common))
        else:
            findings.append(failed(summary, fix="remove what earlier jobs left in /dev/shm", code="shm.full", **common))
    return worst(findings, otherwise=passed(f"{PATH} has room", value=total, limit=floor, free=free))


def _small(judged: Callable[..., Outcome], summary: str, total: float, limit: Limit, free: float) -> Outcome:
    return judged(f"{PATH} {summary}", fix=_FIX, value=total, limit=limit, code="shm.small", culprit=PATH, free=free)
