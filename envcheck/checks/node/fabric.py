"""Behind NVSwitches a GPU works only once the fabric manager has registered it."""

import re
from typing import Any

from envcheck.checks import Check, Limit, Outcome, View, failed, matrix_facts, passed, skipped, undecided, warned, worst
from envcheck.checks.gpu_readings import Reading, Rule, read
from envcheck.counting import counted
from envcheck.matrix.facts.model import key

CHECK = Check("the NVSwitch fabric has registered every GPU and is healthy", "quick", 0.01, gpus=1)

_LIMIT = Limit("completed", "", "NVML: NVML_GPU_FABRIC_STATE_COMPLETED, status success, not unhealthy", "equal")
_FIX = "start nvidia-fabricmanager of the driver's very version (Blackwell: and nvlsm); read its log"
# The switches of a guest may be the host's (NVIDIA/gpu-operator#2923).
_GUEST_FIX = f"{_FIX}; where the host keeps the switches, have it activate the partition of this virtual machine"
# Where the fabric manager shares the switches (FABRIC_MODE), GPUs wait for it to activate a partition of them, and CUDA
# with them (NVIDIA/gpu-driver-container#909, kubernetes-sigs/dra-driver-nvidia-gpu#1289).
_SHARED, _WAITING = ("1", "2"), ("not started", "in progress")
_NOT_READY = 802  # cuInit: CUDA_ERROR_SYSTEM_NOT_READY
_LOOK = f"if fabricmanager.cfg on the host has FABRIC_MODE=1 or 2, activate a partition of these GPUs; else {_FIX}"
_SCARCE = "the fabric has limited capacity for {gpu}"
# GPUs of several nodes are one NVLink domain; without its id NCCL and IMEX leave the node outside
# (Azure/azhpc-images#506, NVIDIA/go-nvlib#54).
_RACK = re.compile(r"\bGB[23]00\b")
_APART = "the node is in no NVLink domain: {gpu} has no ClusterUUID"
_SPLIT = "the GPUs are of several NVLink domains or partitions: {gpu} of {value}"
_SINCE = key("9.0")  # older GPUs do not tell of their fabric


def judge(view: View) -> Outcome:
    """Fail on each GPU that is not registered; with one GPU that torch sees all the same, warn; none in a guest."""
    fabric, guest = read(view, "fabric"), matrix_facts.guest(view)
    attached = fabric.where(lambda info: info["state"] != "not supported")
    one, seen = len(view.snapshot.gpus) == 1, view.environment.get("device_count")
    if one and seen != 0 and guest and fabric.where(lambda info: info["state"] == "not started"):
        return skipped("a virtual machine with one GPU needs no fabric (not started)", code="fabric.one-gpu-guest")
    waiting, mode = fabric.where(lambda info: info["state"] in _WAITING), view.snapshot.signal("host.fabric_mode").value
    unsure = view.snapshot.signal("container.runtime").value not in (None, "none") and not seen and mode is None
    shared = waiting if mode in _SHARED or unsure else {}
    bad = {gpu: word for gpu, info in attached.items() if gpu not in shared and (word := _wrong(info))}
    scarce = {gpu: info["health"] for gpu, info in attached.items() if info["health"] == "limited capacity"}
    verdict, fix = warned if one and seen else failed, _GUEST_FIX if guest else _FIX
    findings = [
        *fabric.lacking(),
        *_unsupported(view, fabric, attached),
        *fabric.blame(bad, Rule(verdict, "fabric.unregistered", "fabric: {gpu} {value}", fix, _LIMIT)),
        *fabric.blame(scarce, Rule(warned, "fabric.limited", _SCARCE, _FIX, _LIMIT)),
        *_domains(view, fabric),
    ]
    if not attached:
        none = skipped("no GPU here has a fabric (not supported)", code="fabric.none")
        return worst(findings, fabric.absent() or none)
    if unsure and waiting:
        text = "not registered, or waiting for a partition of shared switches: this container cannot tell"
        findings.append(undecided(f"fabric: {counted(len(waiting), 'GPU')} {text}", fix=_LOOK, code="fabric.unsure"))
    elif shared:
        text = f"{len(shared)} of {counted(len(attached), 'GPU')} in no partition of the switches (FABRIC_MODE={mode})"
        if view.environment.get("cuinit") != _NOT_READY:
            return worst(findings, skipped(text, code="fabric.shared"))
        findings.append(undecided(f"{text}; no CUDA starts", fix="activate one", code="fabric.unpartitioned"))
    return worst(findings, passed(f"{counted(len(attached), 'GPU')} registered", value="completed", limit=_LIMIT))


def _domains(view: View, fabric: Reading) -> list[Outcome]:
    names, done = (
        read(view, "name").values,
        fabric.where(lambda info: info["state"] == "completed" and "cluster" in info),
    )
    ids = {gpu: f"{info['cluster']} {info.get('clique')}" for gpu, info in done.items() if info["cluster"]}
    none = {gpu: "" for gpu in done if gpu not in ids and _RACK.search(str(names.get(gpu)))}
    odd = {gpu: one for gpu, one in ids.items() if one != max(ids.values(), key=[*ids.values()].count)}
    return [
        *fabric.blame(none, Rule(warned, "fabric.no-domain", _APART, _FIX, _LIMIT)),
        *fabric.blame(odd, Rule(warned, "fabric.split", _SPLIT, _FIX, _LIMIT)),
    ]


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
