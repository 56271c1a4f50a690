"""A process in uninterruptible sleep survives SIGKILL, and often holds the GPU or the mount everybody waits for.

Seen in the wild: a dead NFS server under the data set; a python that hangs in the driver after an Xid, with its memory
held for ever.
"""

from __future__ import annotations

from typing import Any, Final

from envcheck.checks import Check, Limit, Outcome, View, passed, undecided, warned

CHECK = Check(
    promise="no process is stuck in the kernel", level="quick", seconds=0.01, signals=("host.stuck_processes",)
)

_LIMIT: Final = Limit(0, "processes", "proc(5): state D, on two looks 0.3 s apart", "at most")
_SHOWN: Final = 4


def judge(view: View) -> Outcome:
    """Warn naming them; a busy disk holds a process for moments, so only a stay is worth a word."""
    stuck: list[dict[str, Any]] = view.snapshot.signal("host.stuck_processes").value
    if not isinstance(stuck, list):
        return undecided(f"host.stuck_processes is nonsense: {stuck!r}")
    if stuck:
        told = ", ".join(f"{process['name']} ({process['pid']})" for process in stuck[:_SHOWN])
        more = f" and {len(stuck) - _SHOWN} more" if len(stuck) > _SHOWN else ""
        fix = "look at /proc/PID/stack and at the mounts; a process that hangs in the nvidia driver needs a reboot"
        value = len(stuck)
        return warned(f"waiting in the kernel: {told}{more}", fix=fix, value=value, unit=_LIMIT.unit, limit=_LIMIT)
    return passed("none", value=0, unit=_LIMIT.unit, limit=_LIMIT)
