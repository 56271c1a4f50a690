"""An unattended upgrade replaced the driver's libraries under a kernel module that is still the old one.

Containers that were started before the upgrade meet it too (NVIDIA/nvidia-container-toolkit#394).
"""

from envcheck.checks import Check, Limit, Outcome, View, failed, matrix_facts, passed, skipped, undecided
from envcheck.node.snapshot import Signal

CHECK = Check("NVML opens; the kernel module and the driver's libraries are of one version", "quick")

_FIX = "reboot, or unload and load the nvidia modules with no GPU process left; then restart the containers"
# An image or an LXC brought its own (k4yt3x/video2x#1226).
_OWN = (
    "take the driver's libraries out of this container (apt remove 'libnvidia-compute-*' 'nvidia-utils-*'), in LXC"
    " install the host's version without kernel modules; where the host's nvidia-smi says it too, reboot that"
)
_REOPEN = (
    "look at `dmesg` for the nvidia modules (on a new kernel build them: dkms autoinstall; for Secure Boot sign them:"
    " mokutil --import); in a container, restart it (systemd may have revoked its devices; on the host"
    " `nvidia-ctk system create-dev-char-symlinks --create-all` at each boot keeps it from that)"
)
_WINDOWS = (
    "in Windows: `wsl --update`, a driver in WDDM mode (nvidia-smi -g 0 -dm 0; TCC has no WSL); in WSL, remove Linux's"
    " own driver (apt remove 'libnvidia-compute-*' 'nvidia-utils-*')"
)
_WEDGED = "the driver hangs: `dmesg` and `ps -eo stat,wchan:20,args` (state D) show where; reboot the node"
_HALF = (
    "in a container, pass the driver in whole: --gpus all with NVIDIA_DRIVER_CAPABILITIES=compute,utility; on a host"
    " whose driver is a container (GPU operator), add its libraries below /run/nvidia/driver to LD_LIBRARY_PATH"
)
_SOURCE = "NVML_ERROR_LIB_RM_VERSION_MISMATCH: the NVML and the kernel module of a driver only work together"


def judge(view: View) -> Outcome:
    """Compare /proc/driver/nvidia/version with the libraries; NVML's own word for a mismatch is as good."""
    kernel, nvml = view.snapshot.signal("driver.kernel"), view.snapshot.signal("driver.library")
    limit, opening = Limit(kernel.value, "driver version", _SOURCE, "equal"), view.snapshot.signal("nvml.latency")
    again = _FIX if view.snapshot.signal("container.runtime").value in (None, "none") else _OWN
    if opening.why == "mismatch":
        text = f"kernel module {kernel.value or 'unknown'}, NVML {nvml.value or 'unknown'}: {opening.reason}"
        return failed(text, fix=again, value=nvml.value, limit=limit, code="driver-nvml.mismatch")
    if nvml.value is not None and opening.reason:
        fix = _WEDGED if opening.why == "timed-out" else _WINDOWS if matrix_facts.wsl(view) else _REOPEN
        return failed(f"NVML does not open: {opening.reason}", fix=fix, code="driver-nvml.closed")
    if kernel.value is None or nvml.value is None:
        return _one_side(view, kernel, nvml, opening.reason)
    if nvml.value != kernel.value:
        why = f"the kernel module is {kernel.value}, libnvidia-ml is {nvml.value}"
        return failed(why, fix=again, value=nvml.value, limit=limit, code="driver-nvml.mismatch")
    libcuda = view.snapshot.signal("driver.libcuda").value
    return passed(f"kernel module and NVML are {kernel.value}", value=nvml.value, limit=limit, libcuda=libcuda)


def _one_side(view: View, kernel: Signal, nvml: Signal, refused: str | None) -> Outcome:
    """Judge a system that shows one side only, as WSL2 and containers do; NVML opens on its own version alone."""
    version, wsl = view.snapshot.signal("driver.version").value, matrix_facts.wsl(view)
    both_known = wsl or view.snapshot.signal("driver.libcuda").value == nvml.value
    if view.snapshot.gpus and version is not None and not refused and both_known:
        hidden = "WSL2 has no kernel module" if wsl else str(kernel.reason or nvml.reason)
        text = f"NVML {nvml.value or version} opens, which it does on its own version only; {hidden}"
        return passed(text, value=version)
    if kernel.value is None and nvml.value is None:
        return skipped(f"no NVIDIA driver here: {kernel.reason}; {nvml.reason}", code="driver.none")
    return undecided(f"one side is unknown: {kernel.reason or nvml.reason}", fix=_HALF, code="driver-nvml.half")
