"""A GPU in a bad slot trains with fewer lanes, or slower ones, and copies at half or a quarter of the speed.

An idle GPU lets its generation (not its width) drop on purpose: that alone is no fault, and under load it is measured.
Boards with several GPUs (Tesla M10, A16) share their lanes out, laptops have what was soldered, and Grace reaches its
GPU by C2C.
"""

import collections
from typing import Any

from envcheck.checks import Check, Limit, Outcome, View, failed, matrix_facts, passed, warned, worst
from envcheck.checks.gpu_readings import Reading, Rule, read

CHECK = Check("every GPU has the PCIe lanes and the generation it can have", "quick", 0.01, gpus=1)

_GEN = "NVML: the newest generation this GPU can have in this system"
_FIX = "reseat the board or its riser, look at the slot's BIOS settings; exchange it with a good one to compare"


def judge(view: View) -> Outcome:
    """Fail on lost lanes of a data-centre GPU; warn on others', and on a generation that is low while it works."""
    readings = [read(view, name) for name in ("pcie_width", "pcie_width_max", "pcie_gen", "pcie_gen_max")]
    width, widest, now, newest = readings
    findings = [finding for reading in readings for finding in reading.lacking()]
    findings += [*_lanes(view, width, widest), *_generations(view, now, newest)]
    absent = next((skip for reading in readings if (skip := reading.absent()) is not None), None)
    return worst(findings, absent or _sound(view, width.values, widest.values, now.values, newest.values))


def _lanes(view: View, width: Reading, widest: Reading) -> list[Outcome]:
    names, slots, findings = read(view, "name").values, _limits(view), []
    serious, virtual = matrix_facts.unless_consumer(view, width.values), view.snapshot.signal("host.hypervisor")
    usual = _usual(width.values, names)
    for gpu, lanes in width.values.items():
        alike, most = usual[names.get(gpu)], widest.values.get(gpu, lanes)
        verdict = failed if gpu in serious else warned
        if lanes < alike:
            bound, source = max(alike, most), "the other GPUs of this model on this node"
        elif lanes < most and gpu not in slots:
            bound, source = most, "NVML: the most lanes this GPU can have in this system"
            # On Arm the CPU does not say whether this is a virtual machine, which would have been given fewer.
            verdict = warned if virtual.value is None and virtual.why != "not-collected" else verdict
        else:
            continue
        text, limit = f"PCIe lanes: {{gpu}} {{value}} of {bound:g}", Limit(bound, "lanes", source)
        findings += width.blame({gpu: lanes}, Rule(verdict, "pcie-link.width", text, _FIX, limit))
    return findings


def _limits(view: View) -> dict[str, str]:
    several = read(view, "multi_gpu_board", newer=True).values
    limits = {}
    for gpu, name in read(view, "name").values.items():
        if matrix_facts.guest(view):
            limits[gpu] = "as this virtual machine was given"
        elif several.get(gpu):
            limits[gpu] = "as the GPUs of one board share its lanes"
        elif matrix_facts.laptop(name):
            limits[gpu] = "as this laptop was built"
        elif matrix_facts.coherent(name):
            limits[gpu] = "which this GPU, on NVLink-C2C, does not need"
    return limits


def _usual(values: dict[str, Any], names: dict[str, str]) -> dict[str | None, Any]:
    counts: dict[str | None, collections.Counter[Any]] = collections.defaultdict(collections.Counter)
    for gpu, value in values.items():
        counts[names.get(gpu)][value] += 1
    return {model: max(seen, key=lambda value: (seen[value], value)) for model, seen in counts.items()}


def _generations(view: View, now: Reading, newest: Reading) -> list[Outcome]:
    names, best = read(view, "name").values, max(newest.values.values(), default=0)
    usual = _usual(newest.values, names)
    held = {gpu: gen for gpu, gen in newest.values.items() if gen < usual[names.get(gpu)]}
    working = {gpu: gen for gpu, gen in now.values.items() if _works(view, gpu)}
    # What a hypervisor shows of a link is no measure, but it shows the same of each GPU of a model.
    beside = _usual(working, names) if matrix_facts.guest(view) else {}
    slower = {
        gpu: gen
        for gpu, gen in working.items()
        if gen < (beside[names.get(gpu)] if beside else newest.values.get(gpu, gen))
        and not matrix_facts.coherent(str(names.get(gpu)))
    }
    seen, text = max(beside.values(), default=best), "PCIe generation {}: {{gpu}} {{value}}; others {}"
    possible, loaded = text.format("possible", best), text.format("under load", seen)
    return [
        *newest.blame(held, Rule(warned, "pcie-link.slot", possible, _FIX, Limit(best, "", _GEN))),
        *now.blame(slower, Rule(warned, "pcie-link.generation", loaded, _FIX, Limit(seen, "", _GEN))),
    ]


def _sound(
    view: View, width: dict[str, Any], widest: dict[str, Any], now: dict[str, Any], newest: dict[str, Any]
) -> Outcome:
    best, lanes = max(newest.values()), ", ".join(f"x{lanes}" for lanes in sorted(set(width.values())))
    idle = " (lower while idle)" if any(gen < newest.get(gpu, gen) for gpu, gen in now.items()) else ""
    fewer = any(lanes < widest.get(gpu, lanes) for gpu, lanes in width.items())
    reason = f" of x{max(widest.values())}, {' and '.join(sorted(set(_limits(view).values())))}" if fewer else ""
    return passed(f"{lanes}{reason}, generation {best}{idle}", value=best, limit=Limit(best, "", _GEN))


def _works(view: View, gpu: str) -> bool:
    reasons, load = (read(view, name).values.get(gpu) for name in ("clock_reasons", "utilization"))
    return reasons is not None and "idle" not in reasons and load != 0
