"""An unattended upgrade replaced the driver's libraries under a kernel module that is still the old one.

Seen in the wild as "Failed to initialize NVML: Driver/library version mismatch" on a node that worked yesterday, and in
containers that were started before the upgrade (NVIDIA/nvidia-container-toolkit#394). Nothing on the GPU starts.
"""

from __future__ import annotations

from envcheck.checks import Check, Limit, Outcome, View, failed, passed, skipped, undecided
from envcheck.node.nvml import SILENT

CHECK = Check(promise="NVML opens; the kernel module and the driver's libraries are of one version", level="quick")

_FIX = "reboot, or unload and load the nvidia modules with no GPU process left; then restart the containers"
_REOPEN = "look at `dmesg` for the nvidia modules; in a container, restart it (systemd may have revoked its devices)"
_WEDGED = "the driver hangs: `dmesg` and `ps -eo stat,wchan:20,args` (state D) show where; reboot the node"
_HALF = "in a container, pass the driver in whole: --gpus all with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
_SOURCE = "NVML_ERROR_LIB_RM_VERSION_MISMATCH: the NVML and the kernel module of a driver only work together"


def judge(view: View) -> Outcome:
    """Compare /proc/driver/nvidia/version with the libraries; NVML's own word for a mismatch is as good."""
    kernel = view.snapshot.signal("driver.kernel")
    libraries = {name: view.snapshot.signal(f"driver.{name}") for name in ("library", "libcuda")}
    limit = Limit(kernel.value, "driver version", _SOURCE, "equal")
    said = view.snapshot.signal("nvml.latency").reason or ""
    if "version mismatch" in said.lower():
        here = f"kernel module {kernel.value or 'unknown'}, NVML {libraries['library'].value or 'unknown'}"
        return failed(f"{here}: {said}", fix=_FIX, value=libraries["library"].value, limit=limit)
    nvml = libraries["library"]
    if nvml.value is not None and said:
        return failed(f"NVML does not open: {said}", fix=_WEDGED if SILENT in said else _REOPEN)
    if kernel.value is None and nvml.value is None:
        return skipped(f"no NVIDIA driver here: {kernel.reason}; {nvml.reason}")
    if kernel.value is None or nvml.value is None:
        return undecided(f"one side is unknown: {kernel.reason or nvml.reason}", fix=_HALF)
    if nvml.value != kernel.value:
        why = f"the kernel module is {kernel.value}, libnvidia-ml is {nvml.value}"
        return failed(why, fix=_FIX, value=nvml.value, limit=limit)
    summary = f"kernel module and NVML are {kernel.value}"
    return passed(summary, value=nvml.value, limit=limit, libcuda=libraries["libcuda"].value)
