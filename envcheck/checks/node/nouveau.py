"""nouveau, the free driver, takes a GPU before NVIDIA's own can, and CUDA does not run on it."""

from envcheck.checks import Check, Limit, Outcome, View, passed, skipped, undecided, warned, worst
from envcheck.checks.gpu_readings import Rule

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
    if modules.value is not None:
        return worst(findings, passed("nouveau is not loaded", value="not loaded", limit=_LIMIT))
    if modules.why not in ("unsupported", "not-collected"):
        findings.append(undecided(f"host.gpu_modules: {modules.reason}", fix="mount /proc", code="nouveau.unread"))
    if bus.value is None:
        text = f"neither modules nor the drivers of devices are shown here ({bus.reason})"
        return worst(findings, skipped(text, code="nouveau.hidden"))
    text = "this kernel lists no modules, and nouveau drives no GPU"
    return worst(findings, passed(text, value="not loaded", limit=_LIMIT))
