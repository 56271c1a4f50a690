"""Somebody locked the clocks for a benchmark or to save power, and the GPUs have been slow ever since.

Seen in the wild: application clocks or `nvidia-smi --lock-gpu-clocks` of an old job that survive it, on one node of
many; then "this node is 30 % slower" reports. A set clock is a choice, so it is told by name and not failed.
"""

from __future__ import annotations

from typing import Any, Final

from envcheck.checks import Check, Limit, Outcome, View, passed, undecided, warned
from envcheck.checks.node import _gpus

CHECK = Check(promise="no GPU is held below the clocks it was made for", level="quick", seconds=0.01, gpus=1)

_DEFAULT: Final = "NVML: the GPU's own default application clock"
_MOST: Final = "NVML: the highest clock of this GPU"
_SET: Final = "applications clocks"
_HELD: Final = 0.9
_RESET: Final = "if it is not on purpose: nvidia-smi --reset-applications-clocks --reset-gpu-clocks, as root"


def judge(view: View) -> Outcome:
    """Warn of clocks set low, and of a working GPU that a setting holds back (one-model compares their highest)."""
    now, most = _gpus.read(view, "clock_sm"), _gpus.read(view, "clock_sm_max")
    lacking = now.lacking() or most.lacking()
    if lacking is not None:
        return lacking
    nonsense = {gpu: mhz for gpu, mhz in now.values.items() if not mhz <= 1.1 * most.values.get(gpu, mhz)}
    if nonsense:
        return undecided(
            f"above the highest clock: {_gpus.told(nonsense, 'MHz')}", fix="look at `nvidia-smi -q -d CLOCK`"
        )
    return _lowered(view) or _held(view, now.values, most.values) or _sound(most.values)


def _lowered(view: View) -> Outcome | None:
    chosen, usual = _gpus.read(view, "clock_app").values, _gpus.read(view, "clock_app_default").values
    low = {gpu: (mhz, usual[gpu]) for gpu, mhz in chosen.items() if gpu in usual and mhz < usual[gpu]}
    if not low:
        return None
    told = _gpus.told({gpu: f"{mhz:g} of {made:g}" for gpu, (mhz, made) in low.items()}, "MHz")
    least, made = min(low.values())
    limit = Limit(made, "MHz", _DEFAULT)
    gpus = _gpus.uuids(view, low)
    return warned(f"application clocks set low: {told}", fix=_RESET, value=least, unit="MHz", limit=limit, gpus=gpus)


def _held(view: View, now: dict[str, Any], most: dict[str, Any]) -> Outcome | None:
    """Judge GPUs at work whose driver names a set clock as what limits them: an idle one lowers its clock itself."""
    reasons, usual = _gpus.read(view, "clock_reasons").values, _gpus.read(view, "clock_app_default").values
    bound = {gpu: min(usual.get(gpu, most[gpu]), most[gpu]) for gpu in now if gpu in most}
    held = {
        gpu: (now[gpu], most[gpu])
        for gpu, said in reasons.items()
        if gpu in bound and _SET in said and "idle" not in said and now[gpu] < _HELD * bound[gpu]
    }
    if not held:
        return None
    told = _gpus.told({gpu: f"{mhz:g} of {top:g}" for gpu, (mhz, top) in held.items()}, "MHz")
    least, top = min(held.values())
    limit = Limit(top, "MHz", _MOST)
    gpus = _gpus.uuids(view, held)
    return warned(f"held by a set clock: {told}", fix=_RESET, value=least, unit="MHz", limit=limit, gpus=gpus)


def _sound(most: dict[str, Any]) -> Outcome:
    tops = sorted(set(most.values()))
    told = f"nothing holds the clocks below {', '.join(f'{mhz:g}' for mhz in tops)} MHz"
    return passed(told, value=tops[0], unit="MHz", limit=Limit(tops[0], "MHz", _MOST))
