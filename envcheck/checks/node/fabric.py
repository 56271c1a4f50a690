"""Behind NVSwitches a GPU works only once the fabric manager has registered it.

Seen in the wild: `system not yet initialized` (CUDA error 802) after a driver update that forgot the fabric manager,
and all-reduce at three quarters of its speed with a fabric whose multicast does not work.
"""

from __future__ import annotations

from typing import Any, Final

from envcheck.checks import Check, Limit, Outcome, View, failed, passed, skipped, warned, worst
from envcheck.checks.readings import gpu_readings
from envcheck.counting import counted

CHECK = Check(
    promise="the NVSwitch fabric has registered every GPU and is healthy", level="quick", seconds=0.01, gpus=1
)

_LIMIT: Final = Limit("completed", "", "NVML: NVML_GPU_FABRIC_STATE_COMPLETED, status success, not unhealthy", "equal")
_FIX: Final = "start nvidia-fabricmanager of the driver's very version (Blackwell: and nvlsm); read its log"


def judge(view: View) -> Outcome:
    """Fail on each GPU that is not registered; with one GPU that torch sees all the same, warn."""
    fabric = gpu_readings.read(view, "fabric")
    attached = fabric.where(lambda info: info["state"] != "not supported")
    alone = len(view.snapshot.gpus) == 1 and bool(view.environment.get("device_count"))
    verdict = warned if alone else failed
    findings = [
        *fabric.lacking(),
        *fabric.blame(
            _bad(attached), gpu_readings.Rule(verdict, "fabric.unregistered", "fabric: {gpu} {value}", _FIX, _LIMIT)
        ),
    ]
    scarce = {gpu: info["health"] for gpu, info in attached.items() if info["health"] == "limited capacity"}
    text = "the fabric has limited capacity for {gpu}"
    findings += fabric.blame(scarce, gpu_readings.Rule(warned, "fabric.limited", text, _FIX, _LIMIT))
    absent = fabric.absent() or (
        None if attached else skipped("no GPU here has a fabric (not supported)", code="fabric.none")
    )
    return worst(
        findings, absent or passed(f"{counted(len(attached), 'GPU')} registered", value="completed", limit=_LIMIT)
    )


def _bad(attached: dict[str, Any]) -> dict[str, str]:
    """Return the first of state, status and health that is wrong, by GPU."""
    wrong = {
        gpu: [
            *([info["state"]] if info["state"] != "completed" else []),
            *([info["status"]] if info["status"] != "ok" else []),
            *([info["health"]] if info["health"] == "unhealthy" else []),
        ]
        for gpu, info in attached.items()
    }
    return {gpu: str(words[0]) for gpu, words in wrong.items() if words}
