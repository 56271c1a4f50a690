"""Somebody else is on the GPU: what is measured is then theirs too, and the next large job runs out of memory.

Seen in the wild: zombies of a killed job that keep 70 GB, a forgotten notebook, two schedulers on one node. In a
container the driver hides the processes of other ones, but not their memory.
"""

from __future__ import annotations

from typing import Any, Final

from envcheck.checks import Check, Limit, Outcome, View, passed, warned
from envcheck.checks.node import _gpus

CHECK = Check(promise="nobody else holds GPU memory", level="quick", seconds=0.01, gpus=1)

_LIMIT: Final = Limit(2 << 30, "B", "AMD-AGI/Primus node-smoke: at most 2 GiB in use before the first touch", "at most")


def judge(view: View) -> Outcome:
    """Warn above the limit, naming the processes that NVML shows; below it are the driver and this run's own start."""
    used, processes = _gpus.read(view, "memory_used"), _gpus.read(view, "processes").values
    held = used.where(lambda size: not size <= _LIMIT.value)
    if held:
        sizes = {gpu: f"{size / 2**30:.1f}" for gpu, size in held.items()}
        pids = {gpu: _pids(processes.get(gpu) or []) for gpu in held}
        who = "; ".join(f"{gpu}: {text}" for gpu, text in pids.items() if text)
        told = f"in use: {_gpus.told(sizes, 'GiB')}" + (
            f" (processes {who})" if who else " by processes not shown here"
        )
        fix = "end them, or wait; where no process is shown look from the host, and reset a GPU that nobody owns"
        gpus = _gpus.uuids(view, held)
        return warned(told, fix=fix, value=max(held.values()), unit="B", limit=_LIMIT, gpus=gpus)
    lacking = used.lacking()
    return lacking or passed("the GPUs are free", value=max(used.values.values()), unit="B", limit=_LIMIT)


def _pids(processes: list[dict[str, Any]]) -> str:
    return ", ".join(str(process["pid"]) for process in processes[:4])
