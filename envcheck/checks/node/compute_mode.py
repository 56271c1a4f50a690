"""A GPU in prohibited or exclusive mode turns the second process away, with an error that names something else."""

from envcheck.checks import Check, Limit, Outcome, View, failed, passed, warned, worst
from envcheck.checks.gpu_readings import Rule, read
from envcheck.counting import counted

CHECK = Check("every GPU takes processes", "quick", 0.01, gpus=1)

_LIMIT = Limit("default", "", "NVML compute mode; CUDA C++ Programming Guide, compute modes", "equal")
_FIX = "`nvidia-smi --compute-mode=0`, as root"


def judge(view: View) -> Outcome:
    """Fail where no process may use a GPU, warn where only one may."""
    mode = read(view, "compute_mode")
    shut = mode.where(lambda word: word == "prohibited")
    single = mode.where(lambda word: word not in ("default", "prohibited"))
    findings = [
        *mode.lacking(),
        *mode.blame(shut, Rule(failed, "compute-mode.prohibited", "{gpu} {value}", _FIX, _LIMIT)),
        *mode.blame(single, Rule(warned, "compute-mode.exclusive", "{gpu} {value}", _FIX, _LIMIT)),
    ]
    sound = passed(f"default on {counted(len(mode.values), 'GPU')}", value="default", limit=_LIMIT)
    return worst(findings, mode.absent() or sound)
