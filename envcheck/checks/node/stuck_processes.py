"""A process in uninterruptible sleep survives SIGKILL, and often holds the GPU or the mount everybody waits for.

Seen in the wild: a dead NFS server under the data set; a python that hangs in the driver after an Xid, with its memory
held for ever.
"""

from __future__ import annotations

from typing import Any, Final

from envcheck.checks import Check, Limit, Outcome, View, passed, undecided, warned, worst

CHECK = Check(
    promise="no process is stuck in the kernel", level="quick", seconds=0.01, signals=("host.stuck_processes",)
)

_LIMIT: Final = Limit(0, "processes", "proc(5): state D, on two looks 0.3 s apart", "at most")
_FIX: Final = "look at /proc/{pid}/stack and at the mounts; a process that hangs in the nvidia driver needs a reboot"


def judge(view: View) -> Outcome:
    """Warn of each; a busy disk holds a process for moments, so only a stay is worth a word."""
    stuck: list[dict[str, Any]] = view.snapshot.signal("host.stuck_processes").value
    if not isinstance(stuck, list):
        return undecided(
            f"host.stuck_processes has an unexpected type or value: {stuck!r}", code="stuck-processes.unexpected-value"
        )
    return worst(map(_finding, stuck), passed("none", value=0, unit=_LIMIT.unit, limit=_LIMIT))


def _finding(process: dict[str, Any]) -> Outcome:
    name, pid = process["name"], process["pid"]
    return warned(
        f"waiting in the kernel: {name} ({pid})",
        fix=_FIX.format(pid=pid),
        value=1,
        unit=_LIMIT.unit,
        limit=_LIMIT,
        code="stuck-processes.waiting",
        culprit=f"process {pid} ({name})",
    )
