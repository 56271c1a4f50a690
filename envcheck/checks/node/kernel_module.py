"""There are two kernel modules, open and proprietary, and not every GPU works with both.

One that drives no GPU here leaves NVML empty (NVIDIA/open-gpu-kernel-modules#322): PCI ids and the log tell it.
"""

import re
from typing import Any

from envcheck.checks import Check, Limit, Outcome, View, failed, matrix_facts, passed, skipped, undecided, warned, worst
from envcheck.checks.gpu_readings import Reading, Rule, read, slot
from envcheck.matrix.facts.model import key
from envcheck.node import kernel_log
from envcheck.node.snapshot import Signal

CHECK = Check("the kernel module is one that drives these GPUs", "quick", 0.01)

_OPEN_FROM = key("7.5")
_OPEN_ONLY_FROM = key("10.0")
# PCI device ids rise with the generations (open-gpu-kernel-modules, README.md): Turing from 1e02, Blackwell from 2901.
TURING, _BLACKWELL, _ID = "0x1e00", "0x2900", re.compile("0x[0-9a-f]{4}")
# What the driver itself says of a GPU that needs the other module.
TOLD = {kind: str(row["needs"]) for kind, row in kernel_log.FAILURES.items() if "needs" in row}
_SOURCE = (
    "NVIDIA driver installation guide, kernel modules: open ones from Turing on; "
    "open only on Grace Hopper and Blackwell: general knowledge, its announcement was not at hand"
)


def judge(view: View) -> Outcome:
    """Warn on open below Turing and on proprietary from Blackwell on (and on Grace Hopper), fail where none runs so."""
    if matrix_facts.wsl(view):
        text = "WSL2: the GPUs are driven by Windows, and there is no kernel module here"
        return skipped(text, code="kernel-module.wsl")
    flavour, capability = view.snapshot.signal("driver.kernel_flavour"), read(view, "compute_capability")
    name = flavour.value or "either would do"
    sound = passed(f"kernel module: {name}", value=name, limit=Limit("fitting", "", _SOURCE))
    findings = [*capability.lacking(), *_misfits(view, capability, flavour)]
    for bus, needed in unfit(view).items():
        text = f"the driver does not run the GPU at {{gpu}}: it needs the {needed} kernel module"
        limit, fix = Limit(needed, "", _SOURCE, "equal"), f"install the driver's {needed} kernel modules and reboot"
        apart = any(gpus for other, gpus in _needing(view, capability).items() if other != needed)
        # It may be there for a display alone, and its module would take the others away.
        fix, verdict = (
            ("no module drives both: take that GPU out, or leave it unused", warned) if apart else (fix, failed)
        )
        findings.append(Rule(verdict, "kernel-module.unfit", text, fix, limit).at(view, bus, name))
    return worst(findings, capability.absent() or sound)


def unfit(view: View) -> dict[str, str]:
    """Return which module each GPU needs that NVML does not show, by slot, if it is not the one loaded or tried."""
    answering = {slot(gpu.signal("bus_id").value) for gpu in view.snapshot.gpus}
    log = view.snapshot.signal("kernel.driver_failures").value or []
    told = {slot(failure["bus_id"]): TOLD[failure["kind"]] for failure in log if failure["kind"] in TOLD}
    flavour, needed = view.snapshot.signal("driver.kernel_flavour").value, {}
    for gpu in view.snapshot.signal("pci.gpus").value or []:
        place, number = slot(gpu["bus_id"]), str(gpu.get("device"))
        known = _ID.fullmatch(number)
        by_id = "proprietary" if known and number < TURING else "open" if known and number >= _BLACKWELL else ""
        need = by_id or told.get(place, "")
        # The module goes again where it drives no GPU, and its word stays.
        misses = need and (flavour not in (need, None) or (flavour is None and told.get(place) == need))
        if misses and gpu["driver"] in (None, "nvidia") and place not in answering:
            needed[place] = need
    return needed


def _misfits(view: View, capability: Reading, flavour: Signal) -> list[Outcome]:
    names, findings = read(view, "name").values, []
    # A container hides the driver's files in /proc: NVML lists the GPU, so a module drives it.
    contained = view.snapshot.signal("container.runtime").value not in (None, "none")
    hidden = contained and view.snapshot.signal("driver.kernel").value is None
    for needed, gpus in _needing(view, capability).items():
        if gpus and flavour.value is None and not hidden:
            reason = f"which module is loaded is unread ({flavour.reason}); {needed} is needed"
            findings.append(undecided(reason, fix="mount /proc", code="kernel-module.unread"))
        elif gpus and flavour.value not in (needed, None):
            limit, fix = Limit(needed, "", _SOURCE, "equal"), f"install the driver's {needed} kernel modules"
            for gpu in gpus:
                text = f"{names.get(gpu, gpu)} needs the {needed} kernel module".replace("{", "(")
                rule = Rule(warned, "kernel-module.misfit", text, fix, limit)
                findings += capability.blame({gpu: flavour.value}, rule)
    return findings


def _needing(view: View, capability: Reading) -> dict[str, dict[str, Any]]:
    """Return the GPUs that answer and work with one of the modules alone, by that module."""
    too_new = capability.where(lambda cc: key(cc) >= _OPEN_ONLY_FROM)
    names = read(view, "name").values
    too_new |= {gpu: capability.values.get(gpu) for gpu, name in names.items() if "GH200" in name}
    return {"proprietary": capability.where(lambda cc: key(cc) < _OPEN_FROM), "open": too_new}
