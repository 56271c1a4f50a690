"""Failures of a GPU that the kernel's log tells without an Xid: which of them still hold."""

from __future__ import annotations

from typing import Any, Final

from envcheck.checks import Limit, Outcome, View, failed, warned
from envcheck.checks.node.support import gpu_readings, kernel_events

_LIMIT: Final = Limit(0, "failures", "NVIDIA open-gpu-kernel-modules and Linux: messages about a GPU", "at most")
_REBOOT: Final = "drain the node and reboot it; if it comes back, reseat or replace the GPU"
_RESEAT: Final = "reseat the board or its riser; exchange it with a good one to see whether slot or board is at fault"
_WINDOW: Final = "switch on above-4G decoding in the BIOS, or give the virtual machine a larger MMIO window"
_RESET: Final = "drain the node and reset the GPU (nvidia-smi --gpu-reset); reboot if it comes back"
_POWER: Final = "switch the machine off and connect all power cables of the GPU, at the board and at the power supply"
_WORDS: Final = {
    "power-cable": ("a GPU lacks its power cables", _POWER),
    "start": ("the driver could not start a GPU", _REBOOT),
    "memory-window": ("a GPU was given no address space (BAR)", _WINDOW),
    "power-state": ("a GPU did not wake up from its power state", _REBOOT),
    "lost": ("the driver lost a GPU", _REBOOT),
    "locked": ("the driver's watchdog calls a GPU locked", _RESET),
    "link-fatal": ("a fatal error of a GPU's PCIe link", _RESEAT),
    "link-nonfatal": ("an uncorrected error of a GPU's PCIe link", _RESEAT),
}
# A GPU that answers NVML got over these.
_PASSING: Final = ("power-cable", "start", "memory-window", "power-state")


def findings(view: View) -> list[Outcome]:
    """Fail on a failure within a day; warn on an older one, and where the GPU answers NVML after all."""
    listed = view.snapshot.signal("kernel.driver_failures").value
    failures = listed if isinstance(listed, list) else []
    # The driver gives up a GPU without power a line later: that is one failure.
    unpowered = {gpu_readings.slot(failure["bus_id"]) for failure in failures if failure["kind"] == "power-cable"}
    return [
        _finding(view, failure)
        for failure in failures
        if failure["kind"] != "start" or gpu_readings.slot(failure["bus_id"]) not in unpowered
    ]


def _finding(view: View, failure: dict[str, Any]) -> Outcome:
    kind, bus, age = str(failure["kind"]), str(failure["bus_id"]), float(failure["age"])
    problem, fix = _WORDS.get(kind, (f"a GPU's failure ({kind})", _REBOOT))
    over = kind == "link-nonfatal" or (kind in _PASSING and _answers(view, bus))
    verdict = warned if over or age > kernel_events.RECENT else failed
    times = kernel_events.count(failure)
    parts = [
        f"{problem} on {bus or 'an address that the log does not name'}",
        *([f"{times} times"] if times > 1 else []),
        kernel_events.ago(age),
    ]
    return verdict(
        ", ".join(parts),
        fix=fix,
        value=times,
        unit=_LIMIT.unit,
        limit=_LIMIT,
        code=f"xid.{kind}",
        culprit=gpu_readings.place(view, bus) if bus else "",
        gpus=gpu_readings.at(view, [bus] if bus else []),
        log=[failure],
    )


def _answers(view: View, bus: str) -> bool:
    """Tell whether NVML shows a working GPU there; without an address, whether it shows any."""
    working = [gpu for gpu in view.snapshot.gpus if not gpu_readings.lost(gpu)]
    places = {gpu_readings.slot(gpu.signal("bus_id").value) for gpu in working}
    return gpu_readings.slot(bus) in places if bus else bool(places)
