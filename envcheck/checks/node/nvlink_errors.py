"""An NVLink that recovers from errors all the time is up, and slow.

Counters begin with the driver's load or the GPU's reset. GPUs that count in another way (Blackwell) say so.
"""

from envcheck.checks import Check, Limit, Outcome, View, passed, warned, worst
from envcheck.checks.gpu_readings import Rule, read

CHECK = Check("the NVLinks carry data without errors", "quick", 0.01, gpus=1)

_RECOVERY = Limit(0, "recoveries", "NVIDIA/DCGM diag, pcie test: no NVLink recovery error", "at most")
_CRC = Limit(100, "errors", "NVIDIA/DCGM diag: 100 NVLink CRC errors a second; here of all time", "at most")
_FIX = "reset all GPUs of the node together; if it comes back, look at the bridge, the board or the switch"


def judge(view: View) -> Outcome:
    """Warn on recoveries, and on many repairs: the counters do not say when, and bandwidth is measured elsewhere."""
    errors = read(view, "nvlink_errors")
    recovered = {gpu: counts["recovery"] for gpu, counts in errors.values.items()}
    noisy = {gpu: counts["crc"] + counts["replay"] for gpu, counts in errors.values.items()}
    findings = errors.lacking()
    for counts, limit, code in ((recovered, _RECOVERY, "nvlink-errors.recovery"), (noisy, _CRC, "nvlink-errors.crc")):
        rule = Rule(warned, code, f"NVLink errors: {{gpu}} {{value}} {limit.unit}", _FIX, limit)
        findings += errors.blame({gpu: count for gpu, count in counts.items() if count > limit.value}, rule)
    sound = passed("no recoveries, few repeats", value=max(noisy.values(), default=0), limit=_CRC)
    return worst(findings, errors.absent() or sound)
