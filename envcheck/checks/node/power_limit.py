"""Somebody set a lower power limit, and the GPU is slower than its data sheet for as long as the machine is up.

Seen in the wild: a cap set for one hot summer, a nightly script, a rack that cannot feed eight boards; then "H100 is
slow" reports. A cap is a choice, so it is told and not failed: what is measured beside it has it as its reason.
"""

from __future__ import annotations

from typing import Final

from envcheck.checks import Check, Limit, Outcome, View, passed, warned
from envcheck.checks.node import _gpus

CHECK = Check(promise="every GPU may draw the power it was made for", level="quick", seconds=0.01, gpus=1)

_SOURCE: Final = "NVML: the GPU's own default power management limit"
_TOLERANCE: Final = 0.99


def judge(view: View) -> Outcome:
    """Warn where the enforced limit lies below the default one."""
    enforced, default = _gpus.read(view, "power_limit"), _gpus.read(view, "power_limit_default")
    both = {gpu: (watts, default.values[gpu]) for gpu, watts in enforced.values.items() if gpu in default.values}
    capped = {gpu: pair for gpu, pair in both.items() if not pair[0] >= _TOLERANCE * pair[1]}
    if capped:
        told = {gpu: f"{watts:g} of {usual:g}" for gpu, (watts, usual) in capped.items()}
        lowest, usual = min(capped.values(), key=lambda pair: pair[0] / pair[1])
        fix = f"if it is not on purpose: nvidia-smi --power-limit={usual:g}; benchmarks will fall short with the cap"
        limit = Limit(usual, "W", _SOURCE)
        return warned(f"capped: {_gpus.told(told, 'W')}", fix=fix, value=lowest, unit="W", limit=limit)
    lacking = enforced.lacking() or default.lacking()
    if lacking is not None:
        return lacking
    watts = sorted({watts for watts, _ in both.values()})
    limit = Limit(max(usual for _, usual in both.values()), "W", _SOURCE)
    return passed(f"{', '.join(f'{w:g} W' for w in watts)}, as made", value=watts[-1], unit="W", limit=limit)
