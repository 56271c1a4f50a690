"""Without persistence mode the driver lets go of an idle GPU, and whoever asks next waits while it wakes up.

Seen in the wild: seconds added to each start, nvidia-smi timeouts that monitoring takes for a dead GPU, and settings
(clocks, power limits, ECC counts) that are gone between two jobs.
"""

from __future__ import annotations

from typing import Final

from envcheck.checks import Check, Limit, Outcome, View, passed, warned, worst
from envcheck.checks.readings import gpu_readings, matrix_facts

CHECK = Check(promise="the driver stays loaded while the GPUs are idle", level="quick", seconds=0.01, gpus=1)

_LIMIT: Final = Limit("on", "", "NVIDIA driver persistence guide: run nvidia-persistenced", "equal")


def judge(view: View) -> Outcome:
    """Warn of each data-centre GPU where it is off; a desktop's display keeps the driver loaded anyway."""
    mode, names = gpu_readings.read(view, "persistence"), gpu_readings.read(view, "name").values
    off = mode.where(lambda word: word != "on")
    matters = {
        gpu: word for gpu, word in off.items() if matrix_facts.is_datacenter(view, str(names.get(gpu))) is not False
    }
    fix = "start nvidia-persistenced, on the host"
    rule = gpu_readings.Rule(warned, "persistence.off", "persistence mode is {value} on {gpu}", fix, _LIMIT)
    modes = ", ".join(sorted(set(mode.values.values())))
    sound = mode.absent() or passed(f"persistence mode: {modes}", value=modes, limit=_LIMIT)
    return worst([*mode.lacking(), *mode.blame({} if matrix_facts.wsl(view) else matters, rule)], sound)
