"""A GPU keeps its settings and its history of errors in a small store of its own, the InfoROM.

Seen in the wild: "WARNING: infoROM is corrupted at gpu 0000:B3:00.0" under a nvidia-smi that looks fine otherwise, an
exit code 14 that stops a GPU operator (NVIDIA/gpu-operator#2596), and diagnostics that pass (NVIDIA/DCGM#2). ECC counts
and remapped rows are read from it.
"""

from __future__ import annotations

from typing import Final

from envcheck.checks import Check, Limit, Outcome, View, failed, passed, warned, worst
from envcheck.checks.readings import gpu_readings, matrix_facts
from envcheck.counting import counted

CHECK = Check(promise="the InfoROM of every GPU is intact", level="quick", seconds=0.01, gpus=1)

_LIMIT: Final = Limit(
    "intact", "", "NVML: nvmlDeviceValidateInforom; NVIDIA GPU Operator, troubleshooting: a faulty GPU", "equal"
)
_FIX: Final = (
    "reset the GPU (nvidia-smi --gpu-reset) or reboot; if it stays so, have the board's maker repair or replace it"
)


def judge(view: View) -> Outcome:
    """Fail on a corrupted one of a data-centre GPU; warn on a desktop's or laptop's, which works on without."""
    stores, names = gpu_readings.read(view, "inforom", newer=True), gpu_readings.read(view, "name").values
    findings = stores.lacking()
    for gpu, state in stores.where(lambda word: word != "intact").items():
        verdict = warned if matrix_facts.is_datacenter(view, str(names.get(gpu))) is False else failed
        rule = gpu_readings.Rule(verdict, "inforom.corrupted", "the InfoROM of {gpu} is {value}", _FIX, _LIMIT)
        findings += stores.blame({gpu: state}, rule)
    sound = passed(f"intact on {counted(len(stores.values), 'GPU')}", value="intact", limit=_LIMIT)
    return worst(findings, stores.absent() or sound)
