"""A GPU in prohibited or exclusive mode turns the second process away, with an error that names something else.

Seen in the wild: "all CUDA-capable devices are busy or unavailable" on a free GPU, after a scheduler's epilogue failed
to put the mode back.
"""

from __future__ import annotations

from typing import Final

from envcheck.checks import Check, Limit, Outcome, View, failed, passed, warned
from envcheck.checks.node import _gpus

CHECK = Check(promise="every GPU takes processes", level="quick", seconds=0.01, gpus=1)

_LIMIT: Final = Limit("default", "", "NVML compute mode; CUDA C++ Programming Guide, compute modes", "equal")
_FIX: Final = "nvidia-smi --compute-mode=0, as root"


def judge(view: View) -> Outcome:
    """Fail where no process may use the GPU, warn where only one may."""
    mode = _gpus.read(view, "compute_mode")
    shut = mode.where(lambda word: word == "prohibited")
    single = mode.where(lambda word: word not in ("default", "prohibited"))
    for bad, verdict in ((shut, failed), (single, warned)):
        if bad:
            words = sorted(set(bad.values()))
            return verdict(_gpus.told(bad), fix=_FIX, value=words, limit=_LIMIT, gpus=_gpus.uuids(view, bad))
    return mode.lacking() or passed(f"default on {len(mode.values)} GPU(s)", value="default", limit=_LIMIT)
