"""Behind NVSwitches a GPU works only once the fabric manager has registered it.

Seen in the wild: `system not yet initialized` (CUDA error 802) after a driver update that forgot the fabric manager,
and all-reduce at three quarters of its speed with a fabric whose multicast does not work.
"""

from __future__ import annotations

from typing import Final

from envcheck.checks import Check, Limit, Outcome, View, failed, passed, skipped, warned
from envcheck.checks.node import _gpus

CHECK = Check(
    promise="the NVSwitch fabric has registered every GPU and is healthy", level="quick", seconds=0.01, gpus=1
)

_LIMIT: Final = Limit("completed", "", "NVML: NVML_GPU_FABRIC_STATE_COMPLETED, status success, not unhealthy", "equal")
_FIX: Final = "start nvidia-fabricmanager of the driver's very version (Blackwell: and nvlsm); read its log"


def judge(view: View) -> Outcome:
    """Fail on a GPU that is not registered; with one GPU that torch sees all the same, warn."""
    fabric = _gpus.read(view, "fabric")
    lacking = fabric.lacking()
    if lacking is not None:
        return lacking
    mine = fabric.where(lambda info: info["state"] != "not supported")
    if not mine:
        return skipped("no GPU here tells its fabric (not supported)")
    bad = {gpu: info["state"] for gpu, info in mine.items() if info["state"] != "completed"}
    bad |= {gpu: info["status"] for gpu, info in mine.items() if gpu not in bad and info["status"] != "ok"}
    bad |= {gpu: info["health"] for gpu, info in mine.items() if gpu not in bad and info["health"] == "unhealthy"}
    alone = len(view.snapshot.gpus) == 1 and bool(view.environment.get("device_count"))
    seen = sorted({str(word) for word in bad.values()})
    if bad:
        verdict = warned if alone else failed
        told = f"fabric: {_gpus.told(bad)}"
        return verdict(told, fix=_FIX, value=seen, limit=_LIMIT, gpus=_gpus.uuids(view, bad))
    scarce = [gpu for gpu, info in mine.items() if info["health"] == "limited capacity"]
    if scarce:
        why = f"the fabric has limited capacity for {', '.join(scarce)}"
        return warned(why, fix=_FIX, value="limited capacity", limit=_LIMIT)
    return passed(f"{len(mine)} GPU(s) registered", value="completed", limit=_LIMIT)
