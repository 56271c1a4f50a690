"""nvidia-smi shows eight GPUs, torch shows none, and training goes on quietly on the CPU.

What CUDA_VISIBLE_DEVICES names wrongly, visible-devices tells.
"""

from typing import Any

from envcheck.checks import Check, Limit, Outcome, View, failed, passed, skipped, undecided, worst
from envcheck.checks.gpu_readings import about as of_gpu
from envcheck.checks.gpu_readings import label
from envcheck.checks.node.driver_cuda import init_error
from envcheck.checks.node.visible_devices import NAME, parse
from envcheck.counting import counted
from envcheck.node.snapshot import Snapshot

CHECK = Check("torch sees every GPU that NVML sees, less those hidden on purpose", "quick", gpus=1)

_SILENT = "CUDA shows fewer, without an error"
_FIX = "compare the driver with torch's CUDA (check driver-cuda); in a container use --gpus all with `compute`"
_COMPARE = "compare `nvidia-smi -L` inside and outside the container"
_SOURCE = "NVML's device count, after CUDA_VISIBLE_DEVICES (CUDA C++ Programming Guide, environment variables)"


def judge(view: View) -> Outcome:
    """Compare the counts, then the UUIDs; a GPU that torch does not see is a failure with its likeliest cause."""
    visible, torch = view.environment.get("device_count"), view.environment.get("torch")
    if not torch:
        text = f"no torch to compare with: {view.environment.get('error', 'none was asked')}"
        return skipped(text, code="torch.none")
    if visible is None:
        text, fix = "torch was not asked for its devices", "see device_facts_error in the report"
        return undecided(text, fix=fix, code="gpu-visible.unmeasured")
    uuids, hiding = [gpu.uuid for gpu in view.snapshot.gpus], view.snapshot.signal("env").value
    if hiding is None:
        return undecided("the environment was not read", fix="run it again", code="gpu-visible.unmeasured")
    expected = parse(hiding.get(NAME), uuids)
    about: dict[str, Any] = {"value": visible, "unit": "GPUs"}
    # CUDA shows one MIG instance, of however many, and no whole GPU beside it (NVIDIA's MIG user guide, device
    # enumeration; pytorch/pytorch#102715, #130181); where nobody made an instance, the GPUs without MIG.
    sliced = _sliced(view.snapshot)
    mig = all(sliced) or (any(sliced) and hiding.get(NAME) is None and visible in (1, sliced.count(False)))
    about["limit"] = Limit((mig and visible) or expected.gpus or len(uuids), "GPUs", _SOURCE, "equal")
    if visible == 0 or visible < (1 if mig else expected.gpus):
        findings = _unseen(view, visible, [uuids[index] for index in expected.chosen if isinstance(index, int)], about)
        return worst(findings, findings[0])
    strangers = _strangers(view.snapshot, _named(view))
    if not strangers and visible > max(expected.gpus, len(uuids)):
        text = f"torch sees {counted(visible, 'GPU')}, NVML only {len(uuids)}"
        strangers = [undecided(text, fix=_COMPARE, code="gpu-visible.more")]
    hidden = f", {len(uuids) - visible} hidden by {'MIG' if mig else NAME}" if visible < len(uuids) else ""
    return worst(strangers, passed(f"torch sees {visible} of {counted(len(uuids), 'GPU')}{hidden}", **about))


def _unseen(view: View, visible: int, expected: list[str], about: dict[str, Any]) -> list[Outcome]:
    (cause, fix), named = _cause(view), _named(view)
    told_apart = visible > 0 and len(named) == visible and not any(_sliced(view.snapshot))
    missing = [gpu for gpu in view.snapshot.gpus if told_apart and gpu.uuid in expected and gpu.uuid not in named]
    about = {**about, "fix": fix}
    text = f"NVML sees {counted(len(view.snapshot.gpus), 'GPU')}, torch {visible}: {cause}"
    made = {**about, "code": "gpu-visible.missing"}
    each = [failed(f"torch does not see {label(gpu)}: {cause}", **made, **of_gpu(gpu)) for gpu in missing]
    return each or [failed(text, code="gpu-visible.fewer", **about)]


def _sliced(snapshot: Snapshot) -> list[bool]:
    """Return of each GPU whether MIG is on: torch's UUIDs are not the GPUs' then."""
    return [gpu.signal("mig_mode").value == "on" for gpu in snapshot.gpus]


def _named(view: View) -> list[str]:
    return [str(device["uuid"]) for device in view.environment.get("devices") or [] if device.get("uuid")]


def _strangers(snapshot: Snapshot, named: list[str]) -> list[Outcome]:
    known, text = {gpu.uuid for gpu in snapshot.gpus}, "torch's device {} is none that NVML knows"
    strange = [uuid for uuid in named if uuid not in known and not any(_sliced(snapshot))]
    return [undecided(text.format(u), fix=_COMPARE, code="gpu-visible.stranger", culprit=u) for u in strange]


def _cause(view: View) -> tuple[str, str]:
    environment, error = view.snapshot.signal("env").value or {}, init_error(view)
    if not view.environment.get("cuda"):
        fix = "install a CUDA wheel: `envcheck resolve` names the one for this driver and GPU"
        return f"torch {view.environment['torch']} is a CPU wheel", fix
    if environment.get(NAME) is not None:
        return f"{NAME} is {environment[NAME]!r}", f"unset {NAME}"
    none = error is None or error.name in ("CUDA_ERROR_NO_DEVICE", "CUDA_ERROR_INVALID_DEVICE")
    if none and not view.environment.get("device_count") and any(_sliced(view.snapshot)):
        fix = (
            "make instances (`nvidia-smi mig -cgi PROFILE -C`) and name one in CUDA_VISIBLE_DEVICES, or switch MIG off"
        )
        return "MIG is on, and CUDA shows no instance of it", fix
    fix = error.fix if error else _FIX
    if environment.get("NVIDIA_VISIBLE_DEVICES") in ("", "void", "none"):
        return f"NVIDIA_VISIBLE_DEVICES is {environment['NVIDIA_VISIBLE_DEVICES']!r}", fix
    return f"{error.name}: {error.means}" if error else str(view.environment.get("device_error") or _SILENT), fix
