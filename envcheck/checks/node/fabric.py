"""Behind NVSwitches a GPU works only once the fabric manager has registered it."""

from typing import Any

from envcheck.checks import Check, Limit, Outcome, View, failed, passed, skipped, warned, worst
from envcheck.checks.gpu_readings import Rule, read
from envcheck.counting import counted

CHECK = Check("the NVSwitch fabric has registered every GPU and is healthy", "quick", 0.01, gpus=1)

_LIMIT = Limit("completed", "", "NVML: NVML_GPU_FABRIC_STATE_COMPLETED, status success, not unhealthy", "equal")
_FIX = "start nvidia-fabricmanager of the driver's very version (Blackwell: and nvlsm); read its log"
_SCARCE = "the fabric has limited capacity for {gpu}"


def judge(view: View) -> Outcome:
    """Fail on each GPU that is not registered; with one GPU that torch sees all the same, warn."""
    fabric = read(view, "fabric")
    attached = fabric.where(lambda info: info["state"] != "not supported")
    bad = {gpu: word for gpu, info in attached.items() if (word := _wrong(info))}
    scarce = {gpu: info["health"] for gpu, info in attached.items() if info["health"] == "limited capacity"}
    verdict = warned if len(view.snapshot.gpus) == 1 and view.environment.get("device_count") else failed
    findings = [
        *fabric.lacking(),
        *fabric.blame(bad, Rule(verdict, "fabric.unregistered", "fabric: {gpu} {value}", _FIX, _LIMIT)),
        *fabric.blame(scarce, Rule(warned, "fabric.limited", _SCARCE, _FIX, _LIMIT)),
    ]
    if not attached:
        none = skipped("no GPU here has a fabric (not supported)", code="fabric.none")
        return worst(findings, fabric.absent() or none)
    return worst(findings, passed(f"{counted(len(attached), 'GPU')} registered", value="completed", limit=_LIMIT))


def _wrong(info: dict[str, Any]) -> str:
    if info["state"] != "completed":
        return str(info["state"])
    if info["status"] != "ok":
        return str(info["status"])
    return "unhealthy" if info["health"] == "unhealthy" else ""
