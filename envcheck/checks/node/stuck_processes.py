"""A process in uninterruptible sleep survives SIGKILL, and often holds the GPU or the mount everybody waits for."""

from typing import Any

from envcheck.checks import Check, Limit, Outcome, View, passed, warned, worst

CHECK = Check("no process is stuck in the kernel", "quick", 0.01, signals=("host.stuck_processes",))

_LIMIT = Limit(0, "processes", "proc(5): state D for 10 s, without a switch between", "at most")
_FIX = "look at /proc/{pid}/stack and at the mounts; a process that hangs in the nvidia driver needs a reboot"


def judge(view: View) -> Outcome:
    """Warn of each; a busy disk holds a process for moments, so only a stay is worth a word."""
    stuck = view.snapshot.signal("host.stuck_processes").value
    return worst(map(_finding, stuck), passed("none", value=0, limit=_LIMIT))


def _finding(process: dict[str, Any]) -> Outcome:
    name, pid, code = process["name"], process["pid"], "stuck-processes.waiting"
    text, fix, culprit = f"waiting in the kernel: {name} ({pid})", _FIX.format(pid=pid), f"process {pid} ({name})"
    return warned(text, fix=fix, value=1, limit=_LIMIT, code=code, culprit=culprit)
