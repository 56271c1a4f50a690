"""A checkpoint, a DataLoader and a CPU offload live in host memory, and the kernel ends whoever is largest."""

from typing import Any

from envcheck.checks import Check, Limit, Outcome, View, passed, warned, worst
from envcheck.checks.gpu_readings import read

CHECK = Check("host memory holds what the GPUs hold", "quick", 0.01, gpus=1, signals=("host.memory_total",))

_SOURCE = "ours: a checkpoint is loaded through host memory; a DGX H100 has 2 TB for 640 GB of GPUs"


def judge(view: View) -> Outcome:
    """Warn where memory, or the container's limit of it, is less than that of all GPUs together."""
    total, allowed = (view.snapshot.signal(name).value for name in ("host.memory_total", "container.memory_limit"))
    usable = min(total, int(allowed)) if isinstance(allowed, (int, float)) else total
    sizes = read(view, "memory_total")
    missing = sizes.lacking() or [*filter(None, [sizes.absent()])]
    if missing:
        return worst(missing, missing[0])
    limit = Limit(sum(sizes.values.values()), "B", _SOURCE)
    about: dict[str, Any] = {"value": usable, "limit": limit}
    amount = f"{usable / 2**30:.0f} GiB" + (" (the container's limit)" if usable < total else "")
    if usable >= limit.value:
        return passed(amount, **about)
    limited, more = "raise the container's memory limit", "load checkpoints in parts (mmap), or add memory"
    text, fix = f"{amount} for {limit.value / 2**30:.0f} GiB of GPUs", limited if usable < total else more
    return warned(text, fix=fix, code="host-memory.less-than-gpus", **about)
