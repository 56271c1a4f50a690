"""A GPU in a bad slot trains with fewer lanes, or slower ones, and copies at half or a quarter of the speed.

Seen in the wild: x8 after a reseat, a riser that allows Gen3 only, one GPU of eight behind a bad retimer. An idle GPU
lets its generation (not its width) drop on purpose: that alone is no fault, and under load it is measured.
"""

from __future__ import annotations

import collections
from typing import Any, Final

from envcheck.checks import Check, Limit, Outcome, View, failed, passed, warned
from envcheck.checks.node import _facts, _gpus

CHECK = Check(
    promise="every GPU has the PCIe lanes and the generation it can have", level="quick", seconds=0.01, gpus=1
)

_WIDTH: Final = "NVML: the most lanes this GPU can have in this system"
_GEN: Final = "NVML: the newest generation this GPU can have in this system"
_FIX: Final = "reseat the board or its riser, look at the slot's BIOS settings; exchange it with a good one to compare"


def judge(view: View) -> Outcome:
    """Fail on lost lanes of a data-centre GPU, warn on others' and on a generation that is low while it works."""
    width, widest = _gpus.read(view, "pcie_width"), _gpus.read(view, "pcie_width_max")
    narrow = {gpu: (lanes, widest.values[gpu]) for gpu, lanes in width.values.items() if gpu in widest.values}
    narrow = {gpu: pair for gpu, pair in narrow.items() if not pair[0] >= pair[1]}
    if narrow:
        told = f"PCIe lanes: {_gpus.told({gpu: f'{now} of {most}' for gpu, (now, most) in narrow.items()})}"
        least, most = min(narrow.values())
        verdict = failed if _facts.datacenter(view) else warned
        gpus = _gpus.uuids(view, narrow)
        return verdict(told, fix=_FIX, value=least, unit="lanes", limit=Limit(most, "lanes", _WIDTH), gpus=gpus)
    lacking = width.lacking() or widest.lacking()
    return lacking or _generation(view, width)


def _generation(view: View, width: _gpus.Reading) -> Outcome:
    now, newest = _gpus.read(view, "pcie_gen"), _gpus.read(view, "pcie_gen_max")
    lacking = now.lacking() or newest.lacking()
    if lacking is not None:
        return lacking
    best = max(newest.values.values())
    limit = Limit(best, "", _GEN)
    held = _held_back(view, newest.values)
    busy = {gpu: gen for gpu, gen in now.values.items() if not gen >= newest.values.get(gpu, gen) and _works(view, gpu)}
    if held or busy:
        bad = held or busy
        told = f"PCIe generation {'possible' if held else 'under load'}: {_gpus.told(bad)}; others {best}"
        return warned(told, fix=_FIX, value=min(bad.values()), limit=limit, gpus=_gpus.uuids(view, bad))
    lanes = ", ".join(f"x{lanes}" for lanes in sorted(set(width.values.values())))
    idle = (
        " (lower while idle)" if any(not gen >= newest.values.get(gpu, gen) for gpu, gen in now.values.items()) else ""
    )
    return passed(f"{lanes}, generation {best}{idle}", value=best, limit=limit)


def _works(view: View, gpu: str) -> bool:
    reasons = _gpus.read(view, "clock_reasons").values.get(gpu)
    return reasons is not None and "idle" not in reasons


def _held_back(view: View, newest: dict[str, Any]) -> dict[str, Any]:
    """Return the GPUs whose place allows less than that of most of their own model."""
    names = _gpus.read(view, "name").values
    bad: dict[str, Any] = {}
    for model in set(names.values()):
        mine = {gpu: gen for gpu, gen in newest.items() if names.get(gpu) == model}
        usual = collections.Counter(mine.values()).most_common(1)[0][0] if mine else 0
        bad |= {gpu: gen for gpu, gen in mine.items() if gen < usual}
    return bad
