"""There are two kernel modules, open and proprietary, and not every GPU works with both."""

from envcheck.checks import Check, Limit, Outcome, View, matrix_facts, passed, skipped, undecided, warned, worst
from envcheck.checks.gpu_readings import Reading, Rule, read
from envcheck.matrix.facts.model import key
from envcheck.node.snapshot import Signal

CHECK = Check("the kernel module is one that drives these GPUs", "quick", 0.01, gpus=1)

_OPEN_FROM = key("7.5")
_OPEN_ONLY_FROM = key("10.0")
_SOURCE = (
    "NVIDIA driver installation guide, kernel modules: open ones from Turing on; "
    "open only on Grace Hopper and Blackwell: general knowledge, its announcement was not at hand"
)


def judge(view: View) -> Outcome:
    """Warn on open below Turing and on proprietary from Blackwell on (and on Grace Hopper): it runs, unsupported."""
    if matrix_facts.wsl(view):
        text = "WSL2: the GPUs are driven by Windows, and there is no kernel module here"
        return skipped(text, code="kernel-module.wsl")
    flavour, capability = view.snapshot.signal("driver.kernel_flavour"), read(view, "compute_capability")
    name = flavour.value or "either would do"
    sound = passed(f"kernel module: {name}", value=name, limit=Limit("fitting", "", _SOURCE))
    return worst([*capability.lacking(), *_misfits(view, capability, flavour)], capability.absent() or sound)


def _misfits(view: View, capability: Reading, flavour: Signal) -> list[Outcome]:
    names, findings = read(view, "name").values, []
    too_old = capability.where(lambda cc: key(cc) < _OPEN_FROM)
    too_new = capability.where(lambda cc: key(cc) >= _OPEN_ONLY_FROM)
    too_new |= {gpu: capability.values.get(gpu) for gpu, name in names.items() if "GH200" in name}
    for needed, gpus in (("proprietary", too_old), ("open", too_new)):
        if gpus and flavour.value is None and not _hidden(view):
            reason = f"which module is loaded is unread ({flavour.reason}); {needed} is needed"
            findings.append(undecided(reason, fix="mount /proc", code="kernel-module.unread"))
        elif gpus and flavour.value not in (needed, None):
            limit, fix = Limit(needed, "", _SOURCE, "equal"), f"install the driver's {needed} kernel modules"
            for gpu in gpus:
                text = f"{names.get(gpu, gpu)} needs the {needed} kernel module".replace("{", "(")
                rule = Rule(warned, "kernel-module.misfit", text, fix, limit)
                findings += capability.blame({gpu: flavour.value}, rule)
    return findings


def _hidden(view: View) -> bool:
    """Return whether a container hides the driver's files in /proc: NVML lists the GPU, so a module drives it."""
    contained = view.snapshot.signal("container.runtime").value not in (None, "none")
    return contained and view.snapshot.signal("driver.kernel").value is None
