"""A GPU that slows itself down answers every question correctly, late.

Idle, a power cap and set clocks are reasons too, and no faults.
"""

from envcheck.checks import Check, Limit, Outcome, View, failed, passed, warned, worst
from envcheck.checks.gpu_readings import Rule, read

CHECK = Check("no GPU is being slowed down by heat or power faults", "quick", 0.01, gpus=1)

_FAULTS = frozenset({"hardware thermal slowdown", "power brake"})
_SYMPTOMS = frozenset({"hardware slowdown", "software thermal slowdown"})
_SOURCE = "NVML clocks event reasons; leptonai/gpud clock_events.go: bits 0x8, 0x20, 0x40 and 0x80 are faults"
_FIX = "look at fans, inlet temperature, power cables and the power supplies; run the full level under load"


def judge(view: View) -> Outcome:
    """Fail on what the board itself does about heat or power, warn on what the driver does; each GPU by itself."""
    reasons = read(view, "clock_reasons")
    limit = Limit("none of " + ", ".join(sorted(_FAULTS | _SYMPTOMS)), "", _SOURCE, "equal")
    findings = reasons.lacking()
    for code, bad, verdict in (("throttle.fault", _FAULTS, failed), ("throttle.symptom", _SYMPTOMS, warned)):
        slowed = {
            gpu: ", ".join(sorted(bad & set(active))) for gpu, active in reasons.values.items() if bad & set(active)
        }
        findings += reasons.blame(slowed, Rule(verdict, code, "{gpu}: {value}", _FIX, limit))
    words = sorted({word for why in reasons.values.values() for word in why}) or ["none"]
    return worst(findings, reasons.absent() or passed(f"reasons now: {', '.join(words)}", value=words, limit=limit))
