"""nouveau, the free driver, takes a GPU before NVIDIA's own can, and CUDA does not run on it.

Seen in the wild: a kernel update whose initramfs forgot the blacklist, and half the GPUs gone after the reboot.
"""

from __future__ import annotations

from typing import Final

from envcheck.checks import Check, Limit, Outcome, View, passed, skipped, undecided, warned, worst
from envcheck.checks.readings import gpu_readings
from envcheck.node.snapshot import Signal

CHECK = Check(promise="nouveau is not loaded, and drives no GPU", level="quick", seconds=0.01, gpus=1)

_LIMIT: Final = Limit("not loaded", "", "NVIDIA/DCGM nvvs/src/Software.cpp: it refuses to run beside nouveau", "equal")
_FIX: Final = "blacklist nouveau (options nouveau modeset=0), rebuild the initramfs, reboot"
_NO_LIST: Final = ("unsupported", "not-collected")


def judge(view: View) -> Outcome:
    """Warn where it is loaded beside NVIDIA's module, and of each GPU that it drives.

    A kernel without loadable modules has no list of them: there the devices' drivers are all there is to look at.
    """
    modules, bus = view.snapshot.signal("host.gpu_modules"), view.snapshot.signal("pci.gpus")
    findings = [_bound(view, str(gpu["bus_id"])) for gpu in bus.value or [] if gpu["driver"] == "nouveau"]
    if modules.value is None and modules.why not in _NO_LIST:
        reason = f"host.gpu_modules: {modules.reason}"
        findings.append(undecided(reason, fix="mount /proc", code="nouveau.unread"))
    elif modules.value is not None and not _listed(modules.value):
        findings.append(
            undecided(
                f"host.gpu_modules has an unexpected type or value: {modules.value!r}", code="nouveau.unexpected-value"
            )
        )
    elif "nouveau" in (modules.value or []):
        text = "nouveau is loaded beside NVIDIA's module"
        findings.append(warned(text, fix=_FIX, value="loaded", limit=_LIMIT, code="nouveau.loaded"))
    return worst(findings, _sound(modules.value, bus))


def _listed(modules: object) -> bool:
    return isinstance(modules, list) and all(isinstance(name, str) for name in modules)


def _bound(view: View, bus_id: str) -> Outcome:
    return warned(
        f"nouveau drives the GPU at {bus_id}",
        fix=_FIX,
        value="bound",
        limit=_LIMIT,
        code="nouveau.bound",
        culprit=gpu_readings.place(view, bus_id),
        gpus=gpu_readings.at(view, [bus_id]),
    )


def _sound(modules: object, bus: Signal) -> Outcome:
    if modules is not None:
        return passed("nouveau is not loaded", value="not loaded", limit=_LIMIT)
    if bus.value is None:
        return skipped(
            f"neither modules nor the drivers of devices are shown here ({bus.reason})", code="nouveau.hidden"
        )
    return passed("this kernel lists no modules, and nouveau drives no GPU", value="not loaded", limit=_LIMIT)
