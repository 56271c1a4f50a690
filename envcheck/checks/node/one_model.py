"""A job on unlike GPUs runs at the pace of the slowest, in the memory of the smallest.

Seen in the wild: a replacement board with 40 GB among 80 GB ones; one GPU with an older VBIOS that clocks lower; a
display card among the compute cards, which NCCL then includes.
"""

from __future__ import annotations

import collections
from typing import Any, Final

from envcheck.checks import Check, Limit, Outcome, View, passed, skipped, warned
from envcheck.checks.node import _gpus

CHECK = Check(
    promise="all GPUs of this node are of one model, memory size and VBIOS", level="quick", seconds=0.01, gpus=1
)

_LIMIT: Final = Limit("one", "", "ours: a synchronous job waits for its slowest GPU", "equal")
_FIX: Final = "choose with CUDA_VISIBLE_DEVICES, or make the node even"


def judge(view: View) -> Outcome:
    """Warn where models, memory sizes (by more than 2 %) or VBIOS versions differ, naming the odd ones out."""
    if len(view.snapshot.gpus) == 1:
        return skipped("one GPU is like itself")
    names = _gpus.read(view, "name")
    lacking = names.lacking()
    if lacking is not None:
        return lacking
    sizes = {gpu: round(size / 2**30 / 2) * 2 for gpu, size in _gpus.read(view, "memory_total").values.items()}
    clocks = _gpus.read(view, "clock_sm_max").values
    vbios = _gpus.read(view, "vbios").values
    for what, values in (("model", names.values), ("GiB", sizes), ("highest clock", clocks), ("VBIOS", vbios)):
        odd = _odd(values)
        if odd:
            told, kinds = f"{what} differs: {_gpus.told(odd)}", sorted({str(v) for v in values.values()})
            return warned(told, fix=_FIX, value=kinds, limit=_LIMIT, gpus=_gpus.uuids(view, odd))
    return passed(f"{len(names.values)} x {next(iter(names.values.values()))}", value=len(names.values), unit="GPUs")


def _odd(values: dict[str, Any]) -> dict[str, Any]:
    """Return those that are not like most."""
    usual = collections.Counter(values.values()).most_common(1)
    return {gpu: value for gpu, value in values.items() if value != usual[0][0]}
