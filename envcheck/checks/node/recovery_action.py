"""The driver knows when a GPU needs a reset before it can be trusted, and says so to whoever asks.

Seen in the wild: nodes put back into service after an NVLink error with "Drain and Reset" still asked for.
"""

from __future__ import annotations

from typing import Final

from envcheck.checks import Check, Limit, Outcome, View, failed, passed
from envcheck.checks.node import _gpus

CHECK = Check(promise="the driver asks for no recovery of any GPU", level="quick", seconds=0.01, gpus=1)

_LIMIT: Final = Limit("none", "", "NVML: NVML_FI_DEV_GET_GPU_RECOVERY_ACTION (R570 and later)", "equal")


def judge(view: View) -> Outcome:
    """Fail on any action but none, with that action as the remedy."""
    asked = _gpus.read(view, "recovery_action")
    wanted = asked.where(lambda action: action != "none")
    if wanted:
        fix = f"drain the node, then: {', '.join(sorted(set(wanted.values())))}"
        value = sorted(set(wanted.values()))
        return failed(_gpus.told(wanted), fix=fix, value=value, limit=_LIMIT, gpus=_gpus.uuids(view, wanted))
    return asked.lacking() or passed(f"none on {len(asked.values)} GPU(s)", value="none", limit=_LIMIT)
