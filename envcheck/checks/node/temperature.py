"""Hot at rest is throttled under load.

What is too hot differs by model and even by board, so each GPU is asked for the distance to its own slowdown.
"""

from envcheck.checks import Check, Limit, Outcome, View, failed, passed, warned, worst
from envcheck.checks.gpu_readings import Rule, read

CHECK = Check("every GPU is well below the temperature at which it slows down", "quick", 0.01, gpus=1)

_OVER = Limit(1, "C", "NVML: the GPU's own slowdown threshold")
_NEAR = Limit(10, "C", "ours: leptonai/gpud keeps a margin to the GPU's own slowdown threshold too")
_FIX = "look at fans, filters, inlet temperature and blanking panels"


def judge(view: View) -> Outcome:
    """Fail where the slowdown has begun, warn where it is near; each GPU by itself."""
    margin, template = read(view, "temperature_margin"), "degrees left to the slowdown: {gpu} {value} C"
    over = margin.where(lambda degrees: not degrees >= _OVER.value)
    near = margin.where(lambda degrees: _OVER.value <= degrees < _NEAR.value)
    findings = [
        *margin.lacking(),
        *margin.blame(over, Rule(failed, "temperature.slowdown", template, _FIX, _OVER)),
        *margin.blame(near, Rule(warned, "temperature.near", template, _FIX, _NEAR)),
    ]
    least = min(margin.values.values(), default=0)
    sound = margin.absent() or passed(f"at least {least} C below the slowdown", value=least, limit=_NEAR)
    return worst(findings, sound)
