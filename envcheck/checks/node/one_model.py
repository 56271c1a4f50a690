"""A job on unlike GPUs runs at the pace of the slowest, in the memory of the smallest."""

import collections
from typing import Any

from envcheck.checks import Check, Limit, Outcome, View, passed, skipped, warned, worst
from envcheck.checks.gpu_readings import Rule, read

CHECK = Check("all GPUs of this node are of one model, memory size and VBIOS", "quick", 0.01, gpus=1)

_LIMIT = Limit("one", "", "ours: a synchronous job waits for its slowest GPU", "equal")
_FIX = "choose with CUDA_VISIBLE_DEVICES, or make the node even"


def judge(view: View) -> Outcome:
    """Warn where models, memory sizes (by more than 2 %) or VBIOS versions differ, naming the odd ones out."""
    if len(view.snapshot.gpus) == 1:
        return skipped("one GPU is like itself", code="gpu.not-enough")
    names, findings = read(view, "name"), read(view, "name").lacking()
    sizes = {gpu: round(size / 2**30 / 2) * 2 for gpu, size in read(view, "memory_total").values.items()}
    for code, subject, values in (
        ("one-model.model", "model", names.values),
        ("one-model.memory", "GiB", sizes),
        ("one-model.clock", "highest clock", read(view, "clock_sm_max").values),
        ("one-model.vbios", "VBIOS", read(view, "vbios").values),
    ):
        # Another model has another memory size, clock and VBIOS: that is one difference.
        alike = {gpu: value for gpu, value in values.items() if values is names.values or gpu not in _odd(names.values)}
        findings += names.blame(_odd(alike), Rule(warned, code, f"{subject} differs: {{gpu}} {{value}}", _FIX, _LIMIT))
    kinds = ", ".join(f"{count} x {name}" for name, count in collections.Counter(names.values.values()).items())
    return worst(findings, names.absent() or passed(kinds, value=len(names.values), unit="GPUs"))


def _odd(values: dict[str, Any]) -> dict[str, Any]:
    usual = collections.Counter(values.values()).most_common(1)
    return {gpu: value for gpu, value in values.items() if value != usual[0][0]}
