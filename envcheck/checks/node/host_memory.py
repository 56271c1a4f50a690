"""A checkpoint, a DataLoader and a CPU offload live in host memory, and the kernel ends whoever is largest.

Seen in the wild: a model that fits its GPU and whose loading is killed on the host; a container whose limit is a tenth
of the machine.
"""

from __future__ import annotations

from typing import Final

from envcheck.checks import Check, Limit, Outcome, View, passed, warned, worst
from envcheck.checks.readings import gpu_readings

CHECK = Check(
    promise="host memory holds what the GPUs hold", level="quick", seconds=0.01, gpus=1, signals=("host.memory_total",)
)

_SOURCE: Final = "ours: a checkpoint is loaded through host memory; a DGX H100 has 2 TB for 640 GB of GPUs"


def judge(view: View) -> Outcome:
    """Warn where memory, or the container's limit of it, is less than that of all GPUs together."""
    total = int(view.snapshot.signal("host.memory_total").value)
    allowed = view.snapshot.signal("container.memory_limit").value
    usable = min(total, int(allowed)) if isinstance(allowed, int) else total
    sizes = gpu_readings.read(view, "memory_total")
    missing = sizes.lacking() or [*filter(None, [sizes.absent()])]
    if missing:
        return worst(missing, missing[0])
    limit = Limit(sum(sizes.values.values()), "B", _SOURCE)
    amount = f"{usable / 2**30:.0f} GiB" + (" (the container's limit)" if usable < total else "")
    if not usable >= limit.value:
        fix = (
            "raise the container's memory limit"
            if usable < total
            else "load checkpoints in parts (mmap), or add memory"
        )
        return warned(
            f"{amount} for {limit.value / 2**30:.0f} GiB of GPUs",
            fix=fix,
            value=usable,
            unit="B",
            limit=limit,
            code="host-memory.less-than-gpus",
        )
    return passed(amount, value=usable, unit="B", limit=limit)
