"""A driver on its way to hanging answers slowly first."""

from envcheck.checks import Check, Outcome, View, limits, passed, warned
from envcheck.counting import counted

CHECK = Check("NVML answers promptly", "quick", gpus=1, signals=("nvml.latency",))


def judge(view: View) -> Outcome:
    """Warn above the limit: it is a symptom, and persistence mode may be all there is to it."""
    seconds, limit = view.snapshot.signal("nvml.latency").value, limits.limit("nvml-latency", "warn")
    summary = f"NVML took {seconds:.2f} s to describe {counted(len(view.snapshot.gpus), 'GPU')}"
    if seconds > limit.value:
        fix = "switch persistence mode on (nvidia-persistenced); if it stays slow, drain the node and look at `dmesg`"
        return warned(summary, fix=fix, value=seconds, limit=limit, code="nvml-latency.slow")
    return passed(summary, value=seconds, limit=limit)
