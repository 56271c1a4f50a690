"""GPUs that wait for their data are the dearest disks there are.

A file is written where the run was started, taken out of the page cache, and read past it.
"""

from __future__ import annotations

import concurrent.futures
import fcntl
import math
import mmap
import os
import tempfile
import time
from typing import Any

from envcheck import checks
from envcheck.checks import Measured, Outcome, Rank, Ranks, View, failed, passed, skipped, undecided, warned
from envcheck.checks.support import process_group

CHECK = checks.Check(
    promise="the disk of the work directory can be read fast enough for training",
    level="full",
    seconds=8.0,
    timeout=120.0,
)

MIB = 1 << 20
BLOCK, MOST, LEAST = 8 * MIB, 1024 * MIB, 64 * MIB
READERS = 4
# Blocks that are read before they are compared, and by how much one differs from the next: no power of two.
ROUND, SLIDE = 16, 4099
SECONDS = 20.0  # each for writing and reading: a slow disk gets a smaller file
MEMORY = ("tmpfs", "ramfs", "devtmpfs")
# Eight PCIe 5.0 x4 disks side by side are 126 GB/s: what is above has not left memory.
CEILING = 126.0
SYNC = 0.5  # seconds; ours: a disk takes a hundredth of it, a network home or a sync mount longer
_HERE = "the directory it was started in"
_FIX = "put data and checkpoints on local NVMe or a parallel file system, and start the run there"


def measure(rank: Rank) -> Measured:
    """Return how fast a file is written and read in the work directory."""
    started = os.environ.get("PWD", "")
    where = started if os.path.isdir(started) and os.access(started, os.W_OK) else rank.scratch  # noqa: PTH112 (no Path)
    return {"rank": rank.rank, "here": where != rank.scratch, **measured_at(where)}


def measured_at(where: str) -> Measured:
    """Write a file of at most a tenth of what is free, and return how fast it is read; it has no name by then."""
    state = os.statvfs(where)
    kind, size = mounted(where)[1], min(MOST, state.f_bavail * state.f_frsize // 10) // BLOCK * BLOCK
    if kind in MEMORY or size < LEAST:
        return {"kind": kind, "free": state.f_bavail * state.f_frsize}
    descriptor, path = tempfile.mkstemp(prefix=".envcheck-", dir=where)
    try:
        os.unlink(path)  # noqa: PTH108 (nothing is left of it, whatever happens from here on)
        return {"kind": kind, **_measured(descriptor, size)}
    finally:
        os.close(descriptor)


def mounted(where: str, table: str = "/proc/self/mounts") -> tuple[str, str]:
    """Return where the file system of a path is mounted, and its type; of two mounts at one place the later one."""
    with open(table, encoding="utf-8", errors="replace") as stream:  # noqa: PTH123 (no Path is made here)
        mounts = [line.split()[1:3] for line in stream]
    real = os.path.realpath(where) + "/"
    found = [(path, kind) for path, kind in mounts if real.startswith(path.rstrip("/") + "/")]
    return max(reversed(found), key=lambda mount: len(mount[0])) if found else ("", "unknown")


def _measured(descriptor: int, size: int) -> dict[str, Any]:
    """Read in rounds, timed, and compare every block of a round before the next one begins, which is not timed."""
    noise = os.urandom(BLOCK + size // BLOCK * SLIDE)
    began = time.perf_counter()
    written = _write(descriptor, noise, size)
    writing = time.perf_counter() - began
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    direct = _past_the_cache(descriptor)
    buffers = [mmap.mmap(-1, BLOCK) for _ in range(ROUND)]
    seconds, read, same, turn = 0.0, 0, True, 0
    with concurrent.futures.ThreadPoolExecutor(READERS) as readers:
        while turn * BLOCK < written and seconds < SECONDS:
            blocks = range(turn, min(turn + ROUND, written // BLOCK))
            began = time.perf_counter()
            counts = list(
                readers.map(lambda k, first=turn: os.preadv(descriptor, [buffers[k - first]], k * BLOCK), blocks)
            )
            seconds += time.perf_counter() - began
            read += sum(counts)
            same = same and all(buffers[k - turn][:] == _block(noise, k) for k in blocks)
            turn += ROUND
    measured = {"written": written, "writing": writing, "read": read, "seconds": seconds}
    return {**measured, "direct": direct, "same": same}


def _block(noise: bytes, number: int) -> bytes:
    """Return what is in a block: the noise, moved on by so much from block to block that no two are alike."""
    return noise[number * SLIDE : number * SLIDE + BLOCK]


def _write(descriptor: int, noise: bytes, size: int) -> int:
    until, written = time.perf_counter() + SECONDS, 0
    while written < size and (written < LEAST or time.perf_counter() < until):
        written += os.write(descriptor, _block(noise, written // BLOCK)[written % BLOCK :])
        os.fdatasync(descriptor)
    return written // BLOCK * BLOCK


def _past_the_cache(descriptor: int) -> bool:
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
        return os.preadv(descriptor, [mmap.mmap(-1, BLOCK)], 0) == BLOCK
    except OSError:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
        return False


def judge(view: View, ranks: Ranks) -> Outcome:  # noqa: ARG001 (a judge's signature)
    """Warn of a slow disk: a machine may train from memory. Fail on other bytes than were written."""
    from envcheck.checks import limits

    entry = ranks[0] if ranks else {}
    kind, where = entry.get("kind"), _HERE if entry.get("here") else "the temporary directory"
    if kind in MEMORY:
        return skipped(f"{where} is {kind}: memory, not a disk", code="disk-read.memory")
    free = entry.get("free")
    if isinstance(free, int) and 0 <= free < 10 * LEAST:
        return skipped(f"too little is free in {where}: {free / MIB:.0f} MiB", code="disk-read.no-space")
    read, seconds, written = (entry.get(name, math.nan) for name in ("read", "seconds", "written"))
    if not (all(map(process_group.positive, (read, seconds, written))) and read <= written):
        return undecided(
            f"not measured: {read} of {written} B in {seconds} s", fix="run it again", code="disk-read.unmeasured"
        )
    if entry.get("same") is not True:
        return failed(
            "the disk gave back other bytes than were written",
            fix="look at `dmesg`, and replace the disk",
            code="disk-read.data",
        )
    return _judged(entry, kind, where, limits.limit("disk-read", "warn"))


def _judged(entry: Measured, kind: Any, where: str, limit: checks.Limit) -> Outcome:
    speed = entry["read"] / entry["seconds"] / 1e9
    how = "O_DIRECT" if entry.get("direct") else "page cache dropped, which is less sure"
    layer = ", the container's own layer" if kind == "overlay" else ""
    summary = f"{speed:.2f} GB/s from {where} ({kind}{layer}; {entry['read'] / MIB:.0f} MiB, {how})"
    if speed > CEILING:
        text, fix = f"{summary}: more than disks do, so it came out of memory", "run it on a disk of its own"
        return undecided(text, fix=fix, code="disk-read.from-memory")
    verdict = {"value": round(speed, 4), "unit": "GB/s", "limit": limit}
    writing = entry.get("writing")
    if process_group.finite(writing) and (each := writing / (entry["written"] / BLOCK)) > SYNC:
        text = f"{summary}; but {BLOCK // MIB} MiB take {each:.1f} s until they are written for good (fdatasync)"
        return warned(text, fix=_FIX, value=round(speed, 4), unit="GB/s", code="disk-read.slow-sync")
    if speed >= limit.value:
        return passed(summary, **verdict)
    return warned(summary, fix=_FIX, code="disk-read.slow", **verdict)
