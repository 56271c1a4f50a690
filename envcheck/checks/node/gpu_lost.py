"""A GPU that fell off the bus, or that the driver could not start, is simply not in nvidia-smi's list.

Seen in the wild: "nvidia-smi shows 7 GPUs" noticed by a user a week later. The PCI bus still shows the eighth.
"""

from __future__ import annotations

from typing import Any, Final

from envcheck.checks import Check, Limit, Outcome, View, failed, passed, skipped, undecided, warned
from envcheck.checks.node import _gpus

CHECK = Check(promise="every NVIDIA GPU on the PCI bus answers the driver", level="quick", seconds=0.01)

_SOURCE: Final = "NVIDIA display controllers under /sys/bus/pci/devices; NVML's list of devices"
_FIX: Final = "read the Xids in `dmesg`; reboot, then reseat or replace the GPU"
_UNBOUND: Final = "install NVIDIA's driver and blacklist nouveau; inside a container, pass the driver in (--gpus all)"
_ELSEWHERE: Final = "vfio-pci"


def judge(view: View) -> Outcome:
    """Fail on a GPU that NVML lost or never had; warn on one that has another driver, or none."""
    for gpu in view.snapshot.gpus:
        if gpu.uuid.startswith("lost-"):
            why = f"{_gpus.label(gpu)} is in NVML's list and does not answer: {gpu.signal('name').reason}"
            return failed(why, fix=_FIX, value=len(view.snapshot.gpus), unit="GPUs")
    bus = view.snapshot.signal("pci.gpus")
    if bus.value is None:
        return skipped(f"the PCI bus is hidden here ({bus.reason})")
    devices = [gpu for gpu in bus.value if gpu["driver"] != _ELSEWHERE]
    if not devices:
        return _none(view)
    if view.snapshot.signal("gpu.count").value is None:
        return _silent(view, devices)
    return _compared(view, [str(gpu["bus_id"]) for gpu in devices])


def _none(view: View) -> Outcome:
    """Judge a bus without GPUs: a machine without, or a virtual one (WSL) that shows them to NVML alone."""
    if view.snapshot.gpus:
        return skipped("NVML shows GPUs that are not on this system's PCI bus")
    driver, nvml = view.snapshot.signal("driver.kernel"), view.snapshot.signal("driver.library")
    absent = driver.value is None and nvml.value is None
    return skipped(f"no NVIDIA driver here: {driver.reason}; {nvml.reason}" if absent else "no GPU on the PCI bus")


def _compared(view: View, mine: list[str]) -> Outcome:
    seen = {_gpus.slot(gpu.signal("bus_id").value) for gpu in view.snapshot.gpus}
    missing = [bus_id for bus_id in mine if _gpus.slot(bus_id) not in seen]
    limit = Limit(len(mine), "GPUs", _SOURCE)
    if missing and view.snapshot.signal("container.runtime").value not in (None, "none"):
        return skipped(f"a container that was given {len(seen)} of the {len(mine)} GPUs on the bus")
    if missing:
        why = f"{len(mine)} GPUs on the bus, {len(seen)} in NVML: {', '.join(missing)} is missing"
        return failed(why, fix=_FIX, value=len(seen), unit="GPUs", limit=limit, missing=missing)
    return passed(f"{len(seen)} GPU(s)", value=len(seen), unit="GPUs", limit=limit)


def _silent(view: View, devices: list[dict[str, Any]]) -> Outcome:
    """Judge GPUs on the bus of a machine whose NVML does not answer."""
    reason, count = view.snapshot.signal("gpu.count").reason, len(devices)
    held = sorted({str(gpu["driver"] or "no driver") for gpu in devices})
    if "nvidia" in held:
        return undecided(f"{count} GPU(s) on the bus, and NVML does not answer: {reason}", fix="see driver-nvml")
    why = f"{count} NVIDIA GPU(s) on the bus held by {', '.join(held)}: torch cannot use them ({reason})"
    return warned(why, fix=_UNBOUND, value=0, unit="GPUs", limit=Limit(count, "GPUs", _SOURCE))
