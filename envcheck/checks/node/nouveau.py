"""nouveau, the free driver, takes a GPU before NVIDIA's own can, and CUDA does not run on it."""

from envcheck.checks import ERROR, Check, Limit, Outcome, View, passed, warned, worst
from envcheck.checks.gpu_readings import Rule, unreadable

CHECK = Check("nouveau is not loaded, and drives no GPU", "quick", 0.01, gpus=1)

_LIMIT = Limit("not loaded", "", "NVIDIA/DCGM nvvs/src/Software.cpp: it refuses to run beside nouveau", "equal")
_FIX = "blacklist nouveau (options nouveau modeset=0), rebuild the initramfs, reboot"
_BOUND = Rule(warned, "nouveau.bound", "nouveau drives the GPU at {gpu}", _FIX, _LIMIT)


def judge(view: View) -> Outcome:
    """Warn where it is loaded beside NVIDIA's module, and of each GPU that it drives: some kernels list no modules."""
    modules, bus = view.snapshot.signal("host.gpu_modules"), view.snapshot.signal("pci.gpus")
    findings = [_BOUND.at(view, gpu["bus_id"], "bound") for gpu in bus.value or [] if gpu["driver"] == "nouveau"]
    if "nouveau" in (modules.value or []):
        text = "nouveau is loaded beside NVIDIA's module"
        findings.append(warned(text, fix=_FIX, value="loaded", limit=_LIMIT, code="nouveau.loaded"))
    hidden = unreadable(view, "host.gpu_modules", "mount /proc", ("unsupported",))
    if hidden is not None and (bus.value is None or hidden.status == ERROR):
        return worst([*findings, hidden], hidden)
    return worst(findings, passed("nouveau is not loaded", value="not loaded", limit=_LIMIT))
