"""Somebody set a lower power limit, and the GPU is slower than its data sheet for as long as the machine is up.

A cap is a choice, so it is reported and does not fail: what is measured beside it has it as its reason.
"""

from envcheck.checks import Check, Limit, Outcome, View, matrix_facts, passed, skipped, warned, worst
from envcheck.checks.gpu_readings import Rule, read

CHECK = Check("every GPU may draw the power it was made for", "quick", 0.01, gpus=1)

_SOURCE = "NVML: the GPU's own default power management limit"
_FIX = "if it is not on purpose: `nvidia-smi --power-limit={:g}`; benchmarks will fall short with the cap"
_TOLERANCE = 0.99


def judge(view: View) -> Outcome:
    """Warn of each GPU whose enforced limit lies below its default one; a laptop moves its limits by itself."""
    enforced, default = read(view, "power_limit"), read(view, "power_limit_default")
    names = read(view, "name").values
    both = {gpu: (watts, default.values[gpu]) for gpu, watts in enforced.values.items() if gpu in default.values}
    capped = {gpu: pair for gpu, pair in both.items() if pair[0] < _TOLERANCE * pair[1]}
    set_low = {gpu: watts for gpu, (watts, _) in capped.items() if not matrix_facts.laptop(str(names.get(gpu)))}
    found = enforced.blame(set_low, lambda gpu: _rule(default.values[gpu]))
    findings = [*enforced.lacking(), *default.lacking(), *found]
    if not both:
        none = skipped("no GPU has both limits", code="power-limit.not-reported")
        return worst(findings, enforced.absent() or default.absent() or none)
    limits = sorted({watts for watts, _ in both.values()})
    limit = Limit(max(usual for _, usual in both.values()), "W", _SOURCE)
    text = f"{', '.join(f'{w:g} W' for w in limits)}{', moved by the laptop itself' if capped else ', as made'}"
    return worst(findings, passed(text, value=limits[-1], limit=limit))


def _rule(usual: float) -> Rule:
    text, limit = f"capped: {{gpu}} {{value:g}} of {usual:g} W", Limit(usual, "W", _SOURCE)
    return Rule(warned, "power-limit.capped", text, _FIX.format(usual), limit)
