"""Without persistence mode the driver lets go of an idle GPU, and whoever asks next waits while it wakes up."""

from envcheck.checks import Check, Limit, Outcome, View, matrix_facts, passed, skipped, warned, worst
from envcheck.checks.gpu_readings import Rule, read

CHECK = Check("the driver stays loaded while the GPUs are idle", "quick", 0.01, gpus=1)

_LIMIT = Limit("on", "", "NVIDIA driver persistence guide: run nvidia-persistenced", "equal")


def judge(view: View) -> Outcome:
    """Warn of each data-centre GPU where it is off; a desktop's display keeps the driver loaded anyway."""
    mode = read(view, "persistence")
    off = matrix_facts.unless_consumer(view, mode.where(lambda word: word != "on"))
    fix = "start nvidia-persistenced, on the host"
    rule = Rule(warned, "persistence.off", "persistence mode is {value} on {gpu}", fix, _LIMIT)
    modes = ", ".join(sorted(set(mode.values.values())))
    sound = mode.absent() or passed(f"persistence mode: {modes}", value=modes, limit=_LIMIT)
    if off and view.snapshot.signal("container.runtime").value not in (None, "none"):
        # The daemon's socket is on the host (NVIDIA/nvidia-container-toolkit#136).
        text, off = "off as this container sees it, which the host may not be", {}
        sound = skipped(text, code="persistence.in-container")
    return worst([*mode.lacking(), *mode.blame({} if matrix_facts.wsl(view) else off, rule)], sound)
