"""Somebody locked the clocks for a benchmark or to save power, and the GPUs have been slow ever since.

A set clock is a choice, so it is named and does not fail.
"""

from typing import Any

from envcheck.checks import Check, Limit, Outcome, View, passed, warned, worst
from envcheck.checks.gpu_readings import Reading, Rule, read

CHECK = Check("no GPU is held below the clocks it was made for", "quick", 0.01, gpus=1)

_DEFAULT = "NVML: the GPU's own default application clock"
_MOST = "NVML: the highest clock of this GPU"
_HELD = 0.9
_RESET = "if it is not on purpose: `nvidia-smi --reset-applications-clocks --reset-gpu-clocks`, as root"


def judge(view: View) -> Outcome:
    """Warn of clocks set low, and of a working GPU that a setting holds back (one-model compares their highest)."""
    now, most = read(view, "clock_sm"), read(view, "clock_sm_max")
    findings = [*now.lacking(), *most.lacking(), *_lowered(view), *_held(view, now, most)]
    return worst(findings, now.absent() or most.absent() or _sound(most.values))


def _lowered(view: View) -> list[Outcome]:
    chosen, usual = read(view, "clock_app"), read(view, "clock_app_default").values
    low = {gpu: mhz for gpu, mhz in chosen.values.items() if mhz < usual.get(gpu, mhz)}
    return chosen.blame(low, lambda gpu: _rule("clocks.lowered", "application clocks set low", usual[gpu], _DEFAULT))


def _held(view: View, now: Reading, most: Reading) -> list[Outcome]:
    """Judge GPUs at work whose driver names a set clock as what limits them: an idle one lowers its clock itself."""
    reasons, usual = read(view, "clock_reasons").values, read(view, "clock_app_default").values
    tops = {gpu: most.values[gpu] for gpu in now.values if gpu in most.values and gpu in reasons}
    working = [gpu for gpu in tops if "applications clocks" in reasons[gpu] and "idle" not in reasons[gpu]]
    least = {gpu: _HELD * min(usual.get(gpu, tops[gpu]), tops[gpu]) for gpu in working}
    held = {gpu: now.values[gpu] for gpu in working if now.values[gpu] < least[gpu]}
    return now.blame(held, lambda gpu: _rule("clocks.held", "held by a set clock", tops[gpu], _MOST))


def _rule(code: str, subject: str, bound: float, source: str) -> Rule:
    return Rule(warned, code, f"{subject}: {{gpu}} {{value:g}} of {bound:g} MHz", _RESET, Limit(bound, "MHz", source))


def _sound(most: dict[str, Any]) -> Outcome:
    tops = sorted(set(most.values()))
    text = f"nothing holds the clocks below {', '.join(f'{mhz:g}' for mhz in tops)} MHz"
    return passed(text, value=tops[0], limit=Limit(tops[0], "MHz", _MOST))
