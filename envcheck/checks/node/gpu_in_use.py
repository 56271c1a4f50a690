"""Somebody else is on the GPU: what is measured is then theirs too, and the next large job runs out of memory.

In a container the driver hides the processes of other ones, but not their memory. Read before this run touches a GPU.
"""

from envcheck.checks import Check, Outcome, View, matrix_facts, passed, warned, worst
from envcheck.checks.gpu_readings import BUSY, HELD, GpuUser, people, read, shortened, users

CHECK = Check("nobody else holds GPU memory or computes", "quick", 0.01, gpus=1)

# noonghunna/club-3090#1190; where the memory of a coherent GPU is a NUMA node, the kernel keeps files there
# (eth-cscs/cscs-docs#216, NVIDIA/TensorRT-LLM#13955).
_WINDOWS = "close what uses it in Windows (Task Manager, Performance, GPU): WSL2 shows nothing of that"
_FILES = "`echo 3 > /proc/sys/vm/drop_caches` as root, or NVreg_CoherentGPUMemoryMode=driver for the driver; else "
_FIX = "end them, or wait; where no process is shown look from the host, and reset a GPU that nobody owns"


def judge(view: View) -> Outcome:
    """Warn above the limits, naming the processes that NVML shows; below them are the driver and desktops."""
    used, processes = read(view, "memory_used"), read(view, "processes").values
    small = [f"{gpu} {people(running)}" for gpu, running in processes.items() if running]
    noted = f"; processes below the limit: {shortened(small)}" if small else ""
    sound = passed(f"the GPUs are free{noted}", value=max(used.values.values(), default=0), limit=HELD)
    found = [_finding(user, _fix(view, user)) for user in users(view)]
    return worst([*used.lacking(), *found], used.absent() or sound)


def _fix(view: View, user: GpuUser) -> str:
    nodes, cpus = (view.snapshot.signal(name).value for name in ("host.numa_nodes", "host.numa_cpus"))
    coherent = matrix_facts.coherent(str(read(view, "name").values.get(user.gpu)))
    if matrix_facts.wsl(view) and not user.who:
        return _WINDOWS
    return (_FILES if coherent and not user.who and nodes and cpus and nodes > len(cpus) else "") + _FIX


def _finding(user: GpuUser, fix: str) -> Outcome:
    code, limit, value = ("gpu-in-use.memory", HELD, user.held) if user.held else ("gpu-in-use.busy", BUSY, user.busy)
    text = f"in use by {user.gpu}: {user.who or 'processes not shown here'} ({user.text()})"
    culprit, gpus = f"{user.gpu} ({user.uuid})", [user.uuid]
    return warned(text, fix=fix, value=float(value or 0), limit=limit, code=code, culprit=culprit, gpus=gpus)
