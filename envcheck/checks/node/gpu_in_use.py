"""Somebody else is on the GPU: what is measured is then theirs too, and the next large job runs out of memory.

In a container the driver hides the processes of other ones, but not their memory. Read before this run touches a GPU.
"""

from envcheck.checks import Check, Outcome, View, passed, warned, worst
from envcheck.checks.gpu_readings import BUSY, HELD, GpuUser, people, read, shortened, users

CHECK = Check("nobody else holds GPU memory or computes", "quick", 0.01, gpus=1)

_FIX = "end them, or wait; where no process is shown look from the host, and reset a GPU that nobody owns"


def judge(view: View) -> Outcome:
    """Warn above the limits, naming the processes that NVML shows; below them are the driver and desktops."""
    used, processes = read(view, "memory_used"), read(view, "processes").values
    small = [f"{gpu} {people(running)}" for gpu, running in processes.items() if running]
    noted = f"; processes below the limit: {shortened(small)}" if small else ""
    sound = passed(f"the GPUs are free{noted}", value=max(used.values.values(), default=0), limit=HELD)
    return worst([*used.lacking(), *map(_finding, users(view))], used.absent() or sound)


def _finding(user: GpuUser) -> Outcome:
    code, limit, value = ("gpu-in-use.memory", HELD, user.held) if user.held else ("gpu-in-use.busy", BUSY, user.busy)
    text = f"in use by {user.gpu}: {user.who or 'processes not shown here'} ({user.text()})"
    culprit, gpus = f"{user.gpu} ({user.uuid})", [user.uuid]
    return warned(text, fix=_FIX, value=float(value or 0), limit=limit, code=code, culprit=culprit, gpus=gpus)
