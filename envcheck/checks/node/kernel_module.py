"""There are two kernel modules, open and proprietary, and not every GPU works with both.

Seen in the wild: a new Blackwell node with the proprietary module ("no devices were found"), and a V100 after an update
to a distribution that installs the open one by default.
"""

from __future__ import annotations

from typing import Final

from envcheck.checks import Check, Limit, Outcome, View, passed, skipped, undecided, warned, worst
from envcheck.checks.readings import gpu_readings, matrix_facts
from envcheck.matrix.facts.model import key
from envcheck.node.snapshot import Signal

CHECK = Check(promise="the kernel module is one that drives these GPUs", level="quick", seconds=0.01, gpus=1)

_OPEN_FROM: Final = "7.5"
_OPEN_ONLY_FROM: Final = "10.0"
_SOURCE: Final = (
    "NVIDIA driver installation guide, kernel modules: open ones from Turing on; "
    "open only on Grace Hopper and Blackwell: general knowledge, its announcement was not at hand"
)


def judge(view: View) -> Outcome:
    """Warn on open below Turing and on proprietary from Blackwell on (and on Grace Hopper): it runs, unsupported."""
    flavour = view.snapshot.signal("driver.kernel_flavour")
    if flavour.value not in ("open", "proprietary", None):
        return undecided(
            f"driver.kernel_flavour has an unexpected type or value: {flavour.value!r}",
            code="kernel-module.unexpected-value",
        )
    if matrix_facts.wsl(view):
        return skipped(
            "WSL2: the GPUs are driven by Windows, and there is no kernel module here", code="kernel-module.wsl"
        )
    capability = gpu_readings.read(view, "compute_capability")
    findings = [*capability.lacking(), *_misfits(view, capability, flavour)]
    flavour_name = flavour.value or "either would do"
    sound = passed(f"kernel module: {flavour_name}", value=flavour_name, limit=Limit("fitting", "", _SOURCE))
    return worst(findings, capability.absent() or sound)


def _misfits(view: View, capability: gpu_readings.Reading, flavour: Signal) -> list[Outcome]:
    names = gpu_readings.read(view, "name").values
    too_old = capability.where(lambda cc: key(str(cc)) < key(_OPEN_FROM))
    too_new = capability.where(lambda cc: key(str(cc)) >= key(_OPEN_ONLY_FROM))
    too_new |= {gpu: capability.values.get(gpu) for gpu, name in names.items() if "GH200" in str(name)}
    findings = []
    for needed, gpus in (("proprietary", too_old), ("open", too_new)):
        if gpus and flavour.value is None and not _hidden(view):
            reason = f"which module is loaded is unread ({flavour.reason}); {needed} is needed"
            findings.append(undecided(reason, fix="mount /proc", code="kernel-module.unread"))
        elif gpus and flavour.value not in (needed, None):
            limit, fix = Limit(needed, "", _SOURCE, "equal"), f"install the driver's {needed} kernel modules"
            for gpu in gpus:
                text = f"{names.get(gpu, gpu)} needs the {needed} kernel module"
                rule = gpu_readings.Rule(warned, "kernel-module.misfit", text.replace("{", "("), fix, limit)
                findings += capability.blame({gpu: flavour.value}, rule)
    return findings


def _hidden(view: View) -> bool:
    """Return whether a container hides the driver's files in /proc: NVML lists the GPU, so a module drives it."""
    contained = view.snapshot.signal("container.runtime").value not in (None, "none")
    return contained and view.snapshot.signal("driver.kernel").value is None
