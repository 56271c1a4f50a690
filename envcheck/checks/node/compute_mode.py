"""A GPU in prohibited or exclusive mode turns the second process away, with an error that names something else.

So does a vGPU without a licence after minutes, or it slows down a thousandfold (Azure/AKS#4868, #4869).
"""

from envcheck.checks import Check, Limit, Outcome, View, failed, passed, warned, worst
from envcheck.checks.gpu_readings import Rule, read
from envcheck.counting import counted

CHECK = Check("every GPU takes processes", "quick", 0.01, gpus=1)

_LIMIT = Limit("default", "", "NVML compute mode; CUDA C++ Programming Guide, compute modes", "equal")
_FIX = "`nvidia-smi --compute-mode=0`, as root"
_LICENSED = Limit("licensed", "", "NVIDIA vGPU licensing user guide: without, it slows down in time", "equal")
_LICENSE = "give nvidia-gridd its token or license server (/etc/nvidia), then look at `systemctl status nvidia-gridd`"


def judge(view: View) -> Outcome:
    """Fail where no process may use a GPU, warn where only one may and that is not the server of MPS."""
    mode = read(view, "compute_mode")
    shut = mode.where(lambda word: word == "prohibited")
    kinds, licensed = read(view, "virtualization").values, read(view, "license", newer=True)
    # NVML tells it of whole GPUs, too, which need none.
    bare = {gpu: word for gpu, word in licensed.values.items() if word == "unlicensed" and kinds.get(gpu) == "vgpu"}
    # NVIDIA's guide to MPS, and its Kubernetes device plugin, want this mode (NVIDIA/k8s-device-plugin#657).
    names = {gpu: [one.get("name") for one in ran] for gpu, ran in read(view, "processes").values.items()}
    told = "CUDA_MPS_PIPE_DIRECTORY" in (view.snapshot.signal("env").value or {})
    shared = [gpu for gpu in mode.values if told or "nvidia-cuda-mps-server" in names.get(gpu, [])]
    apart = mode.where(lambda word: word not in ("default", "prohibited"))
    single = {gpu: word for gpu, word in apart.items() if gpu not in shared}
    findings = [
        *mode.lacking(),
        *mode.blame(shut, Rule(failed, "compute-mode.prohibited", "{gpu} {value}", _FIX, _LIMIT)),
        *licensed.blame(bare, Rule(warned, "compute-mode.unlicensed", "{gpu} is {value}", _LICENSE, _LICENSED)),
        *mode.blame(single, Rule(warned, "compute-mode.exclusive", "{gpu} {value}", _FIX, _LIMIT)),
    ]
    modes = " and ".join(sorted(set(mode.values.values())))
    text = f"{modes} on {counted(len(mode.values), 'GPU')}{', which MPS shares' if shared else ''}"
    return worst(findings, mode.absent() or passed(text, value=modes, limit=_LIMIT))
