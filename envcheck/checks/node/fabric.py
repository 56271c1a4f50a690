"""Behind NVSwitches a GPU works only once the fabric manager has registered it."""

from typing import Any

from envcheck.checks import Check, Limit, Outcome, View, failed, matrix_facts, passed, skipped, warned, worst
from envcheck.checks.gpu_readings import Reading, Rule, read
from envcheck.counting import counted
from envcheck.matrix.facts.model import key

CHECK = Check("the NVSwitch fabric has registered every GPU and is healthy", "quick", 0.01, gpus=1)

_LIMIT = Limit("completed", "", "NVML: NVML_GPU_FABRIC_STATE_COMPLETED, status success, not unhealthy", "equal")
_FIX = "start nvidia-fabricmanager of the driver's very version (Blackwell: and nvlsm); read its log"
_SCARCE = "the fabric has limited capacity for {gpu}"
_SINCE = key("9.0")  # older GPUs do not tell of their fabric


def judge(view: View) -> Outcome:
    """Fail on each GPU that is not registered; with one GPU that torch sees all the same, warn; none in a guest."""
    fabric = read(view, "fabric")
    attached = fabric.where(lambda info: info["state"] != "not supported")
    one, seen = len(view.snapshot.gpus) == 1, view.environment.get("device_count")
    if one and seen != 0 and matrix_facts.guest(view) and fabric.where(lambda info: info["state"] == "not started"):
        return skipped("a virtual machine with one GPU needs no fabric (not started)", code="fabric.one-gpu-guest")
    bad = {gpu: word for gpu, info in attached.items() if (word := _wrong(info))}
    scarce = {gpu: info["health"] for gpu, info in attached.items() if info["health"] == "limited capacity"}
    verdict = warned if one and seen else failed
    findings = [
        *fabric.lacking(),
        *_unsupported(view, fabric, attached),
        *fabric.blame(bad, Rule(verdict, "fabric.unregistered", "fabric: {gpu} {value}", _FIX, _LIMIT)),
        *fabric.blame(scarce, Rule(warned, "fabric.limited", _SCARCE, _FIX, _LIMIT)),
    ]
    if not attached:
        none = skipped("no GPU here has a fabric (not supported)", code="fabric.none")
        return worst(findings, fabric.absent() or none)
    return worst(findings, passed(f"{counted(len(attached), 'GPU')} registered", value="completed", limit=_LIMIT))


def _unsupported(view: View, fabric: Reading, attached: dict[str, Any]) -> list[Outcome]:
    """Fail on a GPU without a fabric beside a like one; warn where links end at switches (not GH200's: gpud#1206)."""
    names, capability = read(view, "name").values, read(view, "compute_capability").values
    partitioned = read(view, "mig_mode").where(lambda mode: mode == "on")
    switched = read(view, "nvlink_remotes", newer=True).where(lambda far: set(far) == {"switch"})
    none = {gpu: "not supported" for gpu in fabric.values if gpu not in attached and gpu not in partitioned}
    if attached:
        models, text = {names.get(gpu) for gpu in attached}, "fabric: {gpu} {value}, where another of its model has one"
        alone = {gpu: word for gpu, word in none.items() if names.get(gpu) in models}
        return fabric.blame(alone, Rule(failed, "fabric.left-out", text, _FIX, _LIMIT))
    bare = {gpu: word for gpu, word in none.items() if gpu in switched and key(capability.get(gpu, "0.0")) >= _SINCE}
    rule = Rule(warned, "fabric.unsupported", "fabric: {gpu} {value}, though the NVLinks end at switches", _FIX, _LIMIT)
    return fabric.blame(bare if len(bare) > 1 else {}, rule)


def _wrong(info: dict[str, Any]) -> str:
    if info["state"] != "completed":
        return str(info["state"])
    if info["status"] != "ok":
        return str(info["status"])
    return "unhealthy" if info["health"] == "unhealthy" else ""
