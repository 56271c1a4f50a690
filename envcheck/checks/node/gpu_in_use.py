"""Somebody else is on the GPU: what is measured is then theirs too, and the next large job runs out of memory.

Seen in the wild: zombies of a killed job that keep 70 GB, a forgotten notebook, two schedulers on one node. In a
container the driver hides the processes of other ones, but not their memory. Read before this run touches a GPU.
"""

from __future__ import annotations

from envcheck.checks import Check, Outcome, View, passed, warned
from envcheck.checks.node import _gpus, _tenants

CHECK = Check(promise="nobody else holds GPU memory or computes", level="quick", seconds=0.01, gpus=1)

_FIX = "end them, or wait; where no process is shown look from the host, and reset a GPU that nobody owns"


def judge(view: View) -> Outcome:
    """Warn above the limits, naming the processes that NVML shows; below them are the driver and desktops."""
    found = _tenants.tenants(view)
    used = _gpus.read(view, "memory_used")
    if found:
        held = [tenant for tenant in found if tenant.held is not None]
        limit = _tenants.HELD if held else _tenants.BUSY
        worst = max(float((tenant.held if held else tenant.busy) or 0) for tenant in found)
        who = "; ".join(f"{tenant.gpu}: {tenant.who or 'processes not shown here'}" for tenant in found[:4])
        amounts = "; ".join(tenant.told() for tenant in found[:4])
        gpus = [tenant.uuid for tenant in found]
        return warned(f"in use by {who} ({amounts})", fix=_FIX, value=worst, unit=limit.unit, limit=limit, gpus=gpus)
    lacking = used.lacking()
    if lacking is not None:
        return lacking
    small = {gpu: _tenants.people(running) for gpu, running in _gpus.read(view, "processes").values.items() if running}
    noted = f"; processes below the limit: {_gpus.told(small)}" if small else ""
    return passed(f"the GPUs are free{noted}", value=max(used.values.values()), unit="B", limit=_tenants.HELD)
