"""A sliced GPU looks like a whole one to nvidia-smi -L's first column, and like a small one to torch.

Seen in the wild: one GPU of eight left in MIG mode after somebody's experiment: seven ranks start, the eighth finds no
device, or NCCL refuses two slices of one GPU (NVIDIA/nccl#1716).
"""

from __future__ import annotations

from typing import Final

from envcheck.checks import Check, Limit, Outcome, View, passed, warned
from envcheck.checks.node import _gpus

CHECK = Check(promise="MIG is on for all GPUs of this node, or for none", level="quick", seconds=0.01, gpus=1)

_LIMIT: Final = Limit("the same", "", "NVIDIA MIG user guide; NCCL does not run across slices of one GPU", "equal")


def judge(view: View) -> Outcome:
    """Warn where some are sliced and some are not; a GPU that cannot be sliced is not."""
    mode = _gpus.read(view, "mig_mode")
    unread = mode.lacking() if mode.unread else None
    if unread is not None:
        return unread
    on = sorted(mode.where(lambda word: word == "on"))
    if on and len(on) < len(view.snapshot.gpus):
        fix = "nvidia-smi --id=GPU --multi-instance-gpu=0 (and a reset), or give these GPUs to other jobs"
        return warned(
            f"MIG is on for {', '.join(on)} only", fix=fix, value=on, limit=_LIMIT, gpus=_gpus.uuids(view, on)
        )
    said = "on: each job sees slices, and no NVLink" if on else "off"
    return passed(f"MIG is {said}", value="on" if on else "off", limit=_LIMIT)
