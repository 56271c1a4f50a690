"""A GPU that fell off the bus, or that the driver could not start, is simply not in nvidia-smi's list.

The PCI bus still shows it; one that it does not show either, only the number of GPUs of the machine tells.
"""

import json
from pathlib import Path
from typing import Any

from envcheck import checks
from envcheck.checks import PASS, SKIP, Outcome, View, failed, matrix_facts, passed, skipped, undecided, warned, worst
from envcheck.checks.gpu_readings import about, label, lost, place, slot
from envcheck.checks.node import kernel_module, nvlink
from envcheck.counting import counted
from envcheck.node.snapshot import Gpu

CHECK = checks.Check("every NVIDIA GPU on the PCI bus answers the driver", "quick", 0.01)

_SOURCE = "NVIDIA display controllers under /sys/bus/pci/devices; NVML's list of devices"
_FIX = "read the Xids in `dmesg`; look at its power cables; reboot, then reseat or replace the GPU"
_OTHER = "install NVIDIA's driver or load it (see driver-nvml), blacklist nouveau; in a container use --gpus all"
# The GPUs of a machine by the beginning of its product's name.
_MACHINES = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
_DISPLAY = "nothing, if it draws a display; else blacklist its driver, or install a branch of NVIDIA's that knows it"


def judge(view: View) -> Outcome:
    """Fail on a GPU that NVML lost or never had; warn on one that has another driver, or none."""
    silent, bus = [*_lost(view), *_fewer(view)], _bus(view)
    return worst(silent if bus.status in (PASS, SKIP) else [*silent, bus], bus)


def _lost(view: View) -> list[Outcome]:
    counts: dict[str, Any] = {"value": len(view.snapshot.gpus), "unit": "GPUs"}
    bus = [gpu["bus_id"] for gpu in view.snapshot.signal("pci.gpus").value or [] if not _for_guests(gpu)]
    _, missing, unplaced = _placed(view, bus)
    # One that answers nothing gives no address: it is at one of those that no other GPU is at.
    at = f"; it is at {' or '.join(missing)}" if missing and len(missing) == len(unplaced) else ""
    findings = []
    for gpu, final in ((gpu, final) for gpu in view.snapshot.gpus if (final := lost(gpu)) is not None):
        text = f"{label(gpu)} is in NVML's list and does not answer: {final.reason}{at if gpu in unplaced else ''}"
        code = "gpu-lost.reset-required" if final.why == "reset-required" else "gpu-lost.lost"
        findings.append(failed(text, fix=_FIX, code=code, **counts, **about(gpu)))
    return findings


def _fewer(view: View) -> list[Outcome]:
    """Return that the PCI bus lacks GPUs: aws/eks-node-monitoring-agent#121, NVIDIA/gpu-operator#2511."""
    bus, product = (view.snapshot.signal(name).value for name in ("pci.gpus", "host.product"))
    due = next((count for name, count in _MACHINES["gpus"].items() if str(product).startswith(name)), 0)
    count, text = len(bus or []), f"{counted(len(bus or []), 'GPU')} on the PCI bus; "
    about: dict[str, Any] = {"fix": _FIX, "value": count, "limit": checks.Limit(due, "GPUs", _MACHINES["source"])}
    if bus is not None and count < due:
        return [failed(f"{text}{product} has {due}", code="gpu-lost.fewer", culprit=str(product), **about)]
    # A DGX Station A100 has a card for its display beside its four.
    alike = len({gpu.get("device") for gpu in bus or []}) == 1
    boards = alike and all(nvlink.board(str(gpu.signal("name").value)) for gpu in view.snapshot.gpus)
    odd = warned(f"{text}such boards carry 2, 4 or 8: one may be missing", code="gpu-lost.odd", **about)
    return [odd] if boards and not due and view.snapshot.gpus and count in (3, 5, 7) else []


def _for_guests(gpu: dict[str, Any]) -> bool:
    """Return whether a GPU is set aside for virtual machines (vfio-pci, Grace's nvgrace-gpu-vfio-pci, pci-stub)."""
    return "vfio" in str(gpu["driver"]) or gpu["driver"] == "pci-stub"


def _bus(view: View) -> Outcome:
    if matrix_facts.jetson(view):
        return skipped("Jetson: its GPU is part of the chip and not on the PCI bus", code="gpu-lost.jetson")
    bus = view.snapshot.signal("pci.gpus")
    if bus.value is None:
        return skipped(f"the PCI bus is hidden here ({bus.reason})", code="gpu-lost.bus-hidden")
    unfit = kernel_module.unfit(view)
    devices = [gpu for gpu in bus.value if not _for_guests(gpu) and slot(gpu["bus_id"]) not in unfit]
    if not devices and unfit:
        text = f"{counted(len(unfit), 'GPU')} on the bus, of another kernel module: see kernel-module"
        return skipped(text, code="gpu-lost.other-module")
    if not devices:
        return _none(view)
    if view.snapshot.signal("gpu.count").value is None:
        return _silent(view, devices)
    _, silent, _ = _placed(view, [gpu["bus_id"] for gpu in devices])
    # One that is of a kind that answers draws no display: it is lost, whoever holds it.
    alike = {gpu.get("device") for gpu in devices if gpu["bus_id"] not in silent}
    odd = [gpu for gpu in devices if gpu["bus_id"] in silent and gpu.get("device") not in alike]
    foreign = [gpu for gpu in odd if view.snapshot.gpus and _foreign(view, gpu)]
    compared = _compared(view, [gpu["bus_id"] for gpu in devices if gpu not in foreign])
    held = _held(foreign, _DISPLAY, "others answer")
    return worst(held if compared.status in (PASS, SKIP) else [*held, compared], compared)


def _foreign(view: View, gpu: dict[str, Any]) -> bool:
    """Return whether another driver holds it, or the log says that this driver has dropped one without a driver."""
    log, id_ = view.snapshot.signal("kernel.driver_failures").value or [], str(gpu.get("device"))
    told = {slot(failure["bus_id"]) for failure in log if failure["kind"] == "legacy-gpu"}
    dropped = not told.isdisjoint({slot(gpu["bus_id"]), slot("")}) and id_ < kernel_module.TURING
    return gpu["driver"] not in (None, "nvidia") or (gpu["driver"] is None and dropped)


def _none(view: View) -> Outcome:
    driver, nvml = view.snapshot.signal("driver.kernel"), view.snapshot.signal("driver.library")
    if view.snapshot.gpus:
        return skipped("NVML shows GPUs that are not on this system's PCI bus", code="gpu-lost.not-on-bus")
    if driver.value is None and nvml.value is None:
        return skipped(f"no NVIDIA driver here: {driver.reason}; {nvml.reason}", code="driver.none")
    return skipped("no GPU on the PCI bus", code="pci.no-gpu")


def _compared(view: View, on_bus: list[str]) -> Outcome:
    answering, missing, unplaced = _placed(view, on_bus)
    # NVML counts GPUs, too, that a job's device cgroup keeps from it (NVIDIA/nvidia-docker#393).
    kept = view.snapshot.signal("gpu.count").value - len(view.snapshot.gpus)
    contained = view.snapshot.signal("container.runtime").value not in (None, "none")
    missing = missing if len(missing) > len(unplaced) else []
    bound: dict[str, Any] = {"value": len(answering), "limit": checks.Limit(len(on_bus), "GPUs", _SOURCE)}
    if missing and (contained or len(missing) <= len(unplaced) + kept):
        text = f"a container or job that was given {len(answering)} of the {len(on_bus)} GPUs on the bus"
        return skipped(text, code="gpu-lost.in-container")
    counts = f"{counted(len(on_bus), 'GPU')} on the bus, {len(answering)} in NVML"
    made: dict[str, Any] = {"fix": _FIX, "code": "gpu-lost.missing", **bound}
    findings = [
        failed(f"{counts}: {bus_id} is missing", culprit=place(view, bus_id), missing=[bus_id], **made)
        for bus_id in missing
    ]
    return worst(findings, passed(counted(len(answering), "GPU"), **bound))


def _placed(view: View, on_bus: list[str]) -> tuple[set[str], list[str], list[Gpu]]:
    """Return the slots that NVML's GPUs say they are in, the addresses that none says, and the GPUs that say none."""
    answering = {slot(gpu.signal("bus_id").value) for gpu in view.snapshot.gpus}
    unplaced = [gpu for gpu in view.snapshot.gpus if ":" not in str(gpu.signal("bus_id").value)]
    return answering, [bus_id for bus_id in on_bus if slot(bus_id) not in answering], unplaced


def _silent(view: View, devices: list[dict[str, Any]]) -> Outcome:
    reason, count = view.snapshot.signal("gpu.count").reason, len(devices)
    if any(gpu["driver"] == "nvidia" for gpu in devices):
        text = f"{counted(count, 'GPU')} on the bus, and NVML does not answer: {reason}"
        return undecided(text, fix="see driver-nvml", code="gpu-lost.nvml-silent")
    findings = _held(devices, _OTHER, str(reason))
    return worst(findings, findings[0])


def _held(gpus: list[dict[str, Any]], fix: str, why: str) -> list[Outcome]:
    made: dict[str, Any] = {"fix": fix, "value": 0, "limit": checks.Limit(len(gpus), "GPUs", _SOURCE)}
    text, code = "the NVIDIA GPU at {} is held by {}: torch cannot use it ({})", "gpu-lost.other-driver"
    named = [(gpu["bus_id"], gpu["driver"] or "no driver") for gpu in gpus]
    return [warned(text.format(bus, driver, why), code=code, culprit=f"PCI {bus}", **made) for bus, driver in named]
