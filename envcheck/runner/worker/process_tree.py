"""What Linux does for a supervisor: tie a child's life to its parent's, adopt orphans, end every descendant."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

from envcheck.node import subprocesses

_PR_SET_CHILD_SUBREAPER = 36
_TICK = 0.01
_survivors: set[int] = set()  # in uninterruptible sleep, as a broken driver leaves them: named once, then left


def die_with_parent(parent: int) -> None:
    """Have the kernel SIGKILL this process when `parent` dies, even if it has died already."""
    if not subprocesses.ends_with(parent):
        os._exit(128 + signal.SIGKILL)


def die_first() -> None:
    """Have the kernel end this process and its children, rather than what it shares the memory with, where that ends.

    Else it may end the process above, and all checks that were to come with it, or another user's job.
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, whatever session it fled to."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children(pid: int) -> list[int]:
    """Return the direct children of `pid`, zombies included."""
    pids = [int(process.name) for process in Path("/proc").glob("[0-9]*")]
    return [child for child in pids if int(_stat(child)[1]) == pid]


def state(pid: int) -> str:
    """Return the kernel's letter for what `pid` is doing ("D": uninterruptible), or "?"."""
    return _stat(pid)[0]


def _stat(pid: int) -> list[str]:
    # The command's name is in parentheses and may hold anything, parentheses too.
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ["?", "0"]


def has_children() -> bool:
    """Reap every child that has ended; return whether any is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def end_descendants(limit: float) -> list[int]:
    """SIGKILL everything below this process for up to `limit` seconds; return what survived it and was not known to."""
    deadline = time.monotonic() + limit
    while has_children():
        left = [pid for pid in children(os.getpid()) if pid not in _survivors]
        if not left or time.monotonic() > deadline:
            _survivors.update(left)
            return left
        for pid in left:
            signal_quietly(pid, signal.SIGKILL)
        time.sleep(_TICK)
    return []


def signal_quietly(pid: int, number: int) -> None:
    """Send a signal to a process (or, below zero, a group) that may be gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
