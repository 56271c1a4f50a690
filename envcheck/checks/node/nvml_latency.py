"""A driver on its way to hanging answers slowly first."""

from envcheck.checks import Check, Outcome, View, limits, passed, skipped, warned
from envcheck.checks.gpu_readings import read
from envcheck.counting import counted

CHECK = Check("NVML answers promptly", "quick", gpus=1, signals=("nvml.latency",))


def judge(view: View) -> Outcome:
    """Warn above the limit; without persistence mode the driver sets up each GPU when it is asked, which takes long."""
    seconds, limit = view.snapshot.signal("nvml.latency").value, limits.limit("nvml-latency", "warn")
    summary = f"NVML took {seconds:.2f} s to describe {counted(len(view.snapshot.gpus), 'GPU')}"
    if seconds > limit.value:
        if read(view, "persistence").where(lambda mode: mode == "off"):
            return skipped(f"{summary}: persistence mode is off, so it set them up", code="nvml-latency.not-persistent")
        fix = "drain the node, and look at `dmesg`"
        return warned(summary, fix=fix, value=seconds, limit=limit, code="nvml-latency.slow")
    return passed(summary, value=seconds, limit=limit)
