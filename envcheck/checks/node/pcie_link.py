"""A GPU in a bad slot trains with fewer lanes, or slower ones, and copies at half or a quarter of the speed.

Seen in the wild: x8 after a reseat, a riser that allows Gen3 only, one GPU of eight behind a bad retimer. An idle GPU
lets its generation (not its width) drop on purpose: that alone is no fault, and under load it is measured. Boards with
several GPUs (Tesla M10, A16) share their lanes out, laptops have what was soldered, and Grace reaches its GPU by C2C.
"""

from __future__ import annotations

import collections
from typing import Any, Final

from envcheck.checks import Check, Limit, Outcome, View, failed, passed, warned, worst
from envcheck.checks.readings import gpu_readings, matrix_facts

CHECK = Check(
    promise="every GPU has the PCIe lanes and the generation it can have", level="quick", seconds=0.01, gpus=1
)

_WIDTH: Final = "NVML: the most lanes this GPU can have in this system"
_SIBLINGS: Final = "the other GPUs of this model on this node"
_GEN: Final = "NVML: the newest generation this GPU can have in this system"
_FIX: Final = "reseat the board or its riser, look at the slot's BIOS settings; exchange it with a good one to compare"


def judge(view: View) -> Outcome:
    """Fail on lost lanes of a data-centre GPU, warn on others' and on a generation that is low while it works.

    GPUs that are all alike and were given what they have (see _given) are a note.
    """
    width, widest = gpu_readings.read(view, "pcie_width"), gpu_readings.read(view, "pcie_width_max")
    now, newest = gpu_readings.read(view, "pcie_gen"), gpu_readings.read(view, "pcie_gen_max")
    readings = (width, widest, now, newest)
    findings = [finding for reading in readings for finding in reading.lacking()]
    findings += _lanes(view, width, widest)
    findings += _generations(view, now, newest)
    absent = next((skip for reading in readings if (skip := reading.absent()) is not None), None)
    return worst(findings, absent or _sound(view, width, widest, now, newest))


def _lanes(view: View, width: gpu_readings.Reading, widest: gpu_readings.Reading) -> list[Outcome]:
    """Compare each GPU with its siblings, and with what it can have in this system."""
    names, slots, findings = gpu_readings.read(view, "name").values, _limits(view), []
    for gpu, lanes in width.values.items():
        siblings = [count for other, count in width.values.items() if names.get(other) == names.get(gpu)]
        usual, most = _most_common(siblings), widest.values.get(gpu, lanes)
        verdict = warned if matrix_facts.is_datacenter(view, str(names.get(gpu))) is False else failed
        if not lanes >= usual:
            bound, source = max(usual, most), _SIBLINGS
        elif not lanes >= most and gpu not in slots:
            bound, source = most, _WIDTH
            # On Arm the CPU does not say whether this is a virtual machine, which would have been given fewer.
            virtual = view.snapshot.signal("host.hypervisor")
            verdict = warned if virtual.value is None and virtual.why != "not-collected" else verdict
        else:
            continue
        text = f"PCIe lanes: {{gpu}} {{value}} of {bound:g}"
        limit = Limit(bound, "lanes", source)
        findings += width.blame({gpu: lanes}, gpu_readings.Rule(verdict, "pcie-link.width", text, _FIX, limit, "lanes"))
    return findings


def _limits(view: View) -> dict[str, str]:
    """Return the GPUs whose lanes cannot be increased, with what limits them."""
    several = gpu_readings.read(view, "multi_gpu_board", newer=True).values
    limits = {}
    for gpu, name in gpu_readings.read(view, "name").values.items():
        if matrix_facts.guest(view):
            limits[gpu] = "as this virtual machine was given"
        elif several.get(gpu):
            limits[gpu] = "as the GPUs of one board share its lanes"
        elif matrix_facts.laptop(str(name)):
            limits[gpu] = "as this laptop was built"
        elif matrix_facts.coherent(str(name)):
            limits[gpu] = "which this GPU, on NVLink-C2C, does not need"
    return limits


def _most_common(values: list[float]) -> float:
    """Return the most frequent value; of several the largest."""
    counts = collections.Counter(values)
    return max(counts, key=lambda value: (counts[value], value))


def _generations(view: View, now: gpu_readings.Reading, newest: gpu_readings.Reading) -> list[Outcome]:
    """Warn of a place that allows less than its siblings' do, and of a GPU that is slower than it can be at work."""
    best = max(newest.values.values(), default=0)
    limit = Limit(best, "", _GEN)
    held = _held_back(view, newest.values)
    busy = {gpu: gen for gpu, gen in now.values.items() if not gen >= newest.values.get(gpu, gen) and _works(view, gpu)}
    names = gpu_readings.read(view, "name").values
    slower = {gpu: gen for gpu, gen in busy.items() if not matrix_facts.coherent(str(names.get(gpu)))}
    possible, load = (
        f"PCIe generation {when}: {{gpu}} {{value}}; others {best}" for when in ("possible", "under load")
    )
    return [
        *newest.blame(held, gpu_readings.Rule(warned, "pcie-link.slot", possible, _FIX, limit)),
        *now.blame(
            {} if matrix_facts.guest(view) else slower,
            gpu_readings.Rule(warned, "pcie-link.generation", load, _FIX, limit),
        ),
    ]


def _sound(
    view: View,
    width: gpu_readings.Reading,
    widest: gpu_readings.Reading,
    now: gpu_readings.Reading,
    newest: gpu_readings.Reading,
) -> Outcome:
    best, limit = max(newest.values.values()), Limit(max(newest.values.values()), "", _GEN)
    lanes = ", ".join(f"x{lanes}" for lanes in sorted(set(width.values.values())))
    slower = any(not gen >= newest.values.get(gpu, gen) for gpu, gen in now.values.items())
    idle = " (lower while idle)" if slower else ""
    fewer = any(not lanes >= widest.values.get(gpu, lanes) for gpu, lanes in width.values.items())
    reason = f" of x{max(widest.values.values())}, {' and '.join(sorted(set(_limits(view).values())))}" if fewer else ""
    note = "virtual machine" if matrix_facts.guest(view) else "bare metal"
    return passed(f"{lanes}{reason}, generation {best}{idle}", value=best, limit=limit, system=note)


def _works(view: View, gpu: str) -> bool:
    reasons, load = (gpu_readings.read(view, name).values.get(gpu) for name in ("clock_reasons", "utilization"))
    return reasons is not None and "idle" not in reasons and load != 0


def _held_back(view: View, newest: dict[str, Any]) -> dict[str, Any]:
    """Return the GPUs whose place allows less than that of most of their own model."""
    names = gpu_readings.read(view, "name").values
    usual = {
        model: _most_common([gen for gpu, gen in newest.items() if names.get(gpu) == model])
        for model in {names.get(gpu) for gpu in newest}
    }
    return {gpu: gen for gpu, gen in newest.items() if gen < usual[names.get(gpu)]}
