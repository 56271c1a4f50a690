"""A GPU keeps its settings and its history of errors in a small store of its own, the InfoROM.

A corrupted one stops a GPU operator (NVIDIA/gpu-operator#2596) while diagnostics pass (NVIDIA/DCGM#2).
"""

from envcheck.checks import Check, Limit, Outcome, View, failed, matrix_facts, passed, warned, worst
from envcheck.checks.gpu_readings import Rule, read
from envcheck.counting import counted

CHECK = Check("the InfoROM of every GPU is intact", "quick", 0.01, gpus=1)

_SOURCE = "NVML: nvmlDeviceValidateInforom; NVIDIA GPU Operator, troubleshooting: a faulty GPU"
_LIMIT = Limit("intact", "", _SOURCE, "equal")
_FIX = "reset the GPU (`nvidia-smi --gpu-reset`) or reboot; if it stays so, have the board's maker repair or replace it"


def judge(view: View) -> Outcome:
    """Fail on a corrupted one of a data-centre GPU; warn on a desktop's or laptop's, which works on without."""
    stores = read(view, "inforom", newer=True)
    bad, text = stores.where(lambda word: word != "intact"), "the InfoROM of {gpu} is {value}"
    serious = matrix_facts.unless_consumer(view, bad)
    verdicts = {gpu: failed if gpu in serious else warned for gpu in bad}
    found = stores.blame(bad, lambda gpu: Rule(verdicts[gpu], "inforom.corrupted", text, _FIX, _LIMIT))
    sound = passed(f"intact on {counted(len(stores.values), 'GPU')}", value="intact", limit=_LIMIT)
    return worst([*stores.lacking(), *found], stores.absent() or sound)
