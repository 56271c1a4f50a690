"""A sliced GPU looks like a whole one to nvidia-smi -L's first column, and like a small one to torch.

NCCL refuses two slices of one GPU (NVIDIA/nccl#1716).
"""

from envcheck.checks import Check, Limit, Outcome, View, passed, warned, worst
from envcheck.checks.gpu_readings import Rule, read

CHECK = Check("MIG is on for all GPUs of this node, or for none", "quick", 0.01, gpus=1)

_LIMIT = Limit("the same", "", "NVIDIA MIG user guide; NCCL does not run across slices of one GPU", "equal")
# NVIDIA/gpu-operator#1845, NVIDIA/mig-parted#181: a reset that something in the way keeps from being made.
_FREE = "end what holds the GPU (device plugin, DCGM, persistence daemon, nvidia_drm), then `nvidia-smi --gpu-reset`"
_WAITS = Rule(warned, "mig.pending", "MIG goes {value} at the next reset of {gpu}", _FREE, _LIMIT)


def judge(view: View) -> Outcome:
    """Warn of the sliced GPUs where others are not, and of a change that waits; a GPU that cannot be sliced is not."""
    mode = read(view, "mig_mode")
    on = mode.where(lambda word: word == "on")
    pending = read(view, "mig_pending", newer=True)
    waits = {gpu: word for gpu, word in pending.values.items() if word != mode.values.get(gpu, word)}
    odd = on if len(on) < len(view.snapshot.gpus) else {}
    fix = "`nvidia-smi --id=GPU --multi-instance-gpu=0` (and a reset), or give these GPUs to other jobs"
    rule = Rule(warned, "mig.some", "MIG is on for {gpu}, not for all", fix, _LIMIT)
    state = "on: each job sees slices, and no NVLink" if on else "off"
    sound = passed(f"MIG is {state}", value="on" if on else "off", limit=_LIMIT)
    return worst([*mode.lacking(), *mode.blame(odd, rule), *pending.blame(waits, _WAITS)], sound)
