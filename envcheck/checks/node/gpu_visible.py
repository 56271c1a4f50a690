"""nvidia-smi shows eight GPUs, torch shows none, and training goes on quietly on the CPU.

Seen in the wild: a CPU wheel pulled in by some requirement, CUDA_VISIBLE_DEVICES="" left over from a test, a driver too
old for the wheel, a container without the compute capability. What that variable names wrongly, visible-devices tells.
"""

from __future__ import annotations

from envcheck.checks import Check, Limit, Outcome, View, failed, passed, skipped, undecided, worst
from envcheck.checks.readings import cuda_init_errors, gpu_readings, visible_gpus
from envcheck.counting import counted
from envcheck.node.snapshot import Snapshot

CHECK = Check(promise="torch sees every GPU that NVML sees, less those hidden on purpose", level="quick", gpus=1)

_SILENT = "CUDA shows fewer, without an error"
_FIX = "compare the driver with torch's CUDA (check driver-cuda); in a container use --gpus all with `compute`"
_COMPARE = "compare `nvidia-smi -L` inside and outside the container"
_SOURCE = "NVML's device count, after CUDA_VISIBLE_DEVICES (CUDA C++ Programming Guide, environment variables)"


def judge(view: View) -> Outcome:
    """Compare the counts, then the UUIDs; a GPU that torch does not see is a failure with its likeliest cause."""
    visible, torch = view.environment.get("device_count"), view.environment.get("torch")
    if not torch:
        return skipped(
            f"no torch to compare with: {view.environment.get('error', 'none was asked')}", code="torch.none"
        )
    if visible is None:
        return undecided(
            "torch was not asked for its devices",
            fix="see device_facts_error in the report",
            code="gpu-visible.unmeasured",
        )
    environment = view.snapshot.signal("env").value
    if isinstance(visible, bool) or not isinstance(visible, int) or visible < 0 or not isinstance(environment, dict):
        return undecided(
            f"unexpected type or value: {visible!r} devices, environment {str(environment)[:40]}",
            fix="run it again",
            code="gpu-visible.unexpected-value",
        )
    uuids = [gpu.uuid for gpu in view.snapshot.gpus]
    expected = visible_gpus.parse(environment.get("CUDA_VISIBLE_DEVICES"), uuids)
    limit = Limit(expected.gpus or len(uuids), "GPUs", _SOURCE, "equal")
    if visible == 0 or visible < expected.gpus:
        findings = _unseen(view, visible, [uuids[index] for index in expected.chosen if isinstance(index, int)], limit)
        return worst(findings, findings[0])
    strangers = _strangers(view.snapshot, _named(view))
    if not strangers and visible > max(expected.gpus, len(uuids)):
        strangers = [
            undecided(
                f"torch sees {counted(visible, 'GPU')}, NVML only {len(uuids)}", fix=_COMPARE, code="gpu-visible.more"
            )
        ]
    hidden = f", {len(uuids) - visible} hidden by CUDA_VISIBLE_DEVICES" if visible < len(uuids) else ""
    sound = passed(
        f"torch sees {visible} of {counted(len(uuids), 'GPU')}{hidden}", value=visible, unit="GPUs", limit=limit
    )
    return worst(strangers, sound)


def _unseen(view: View, visible: int, expected: list[str], limit: Limit) -> list[Outcome]:
    """Return one failure for each GPU that torch does not see, or one for the node if it is unknown which."""
    environment = view.snapshot.signal("env").value
    cause, fix, named = _cause(view, environment), _fix(view, environment), _named(view)
    told_apart = visible > 0 and len(named) == visible and not _sliced(view.snapshot)
    missing = [gpu for gpu in view.snapshot.gpus if told_apart and gpu.uuid in expected and gpu.uuid not in named]
    return [
        failed(
            f"torch does not see {gpu_readings.label(gpu)}: {cause}",
            fix=fix,
            value=visible,
            unit="GPUs",
            limit=limit,
            code="gpu-visible.missing",
            culprit=gpu_readings.culprit(view, gpu_readings.label(gpu)),
            gpus=[gpu.uuid],
        )
        for gpu in missing
    ] or [_fewer(f"NVML sees {counted(len(view.snapshot.gpus), 'GPU')}, torch {visible}: {cause}", fix, visible, limit)]


def _fewer(text: str, fix: str, visible: int, limit: Limit) -> Outcome:
    return failed(text, fix=fix, value=visible, unit="GPUs", limit=limit, code="gpu-visible.fewer")


def _sliced(snapshot: Snapshot) -> bool:
    """Return whether MIG is on for any GPU: torch's UUIDs are not the GPUs' then."""
    return any(gpu.signal("mig_mode").value == "on" for gpu in snapshot.gpus)


def _named(view: View) -> list[str]:
    """Return the UUIDs of the devices that torch sees, as far as its release tells them."""
    return [str(device["uuid"]) for device in view.environment.get("devices") or [] if device.get("uuid")]


def _strangers(snapshot: Snapshot, named: list[str]) -> list[Outcome]:
    """Return one error for each device of torch's that NVML does not know."""
    if _sliced(snapshot):
        return []
    uuids = {gpu.uuid for gpu in snapshot.gpus}
    return [
        undecided(
            f"torch's device {uuid} is none that NVML knows", fix=_COMPARE, code="gpu-visible.stranger", culprit=uuid
        )
        for uuid in named
        if uuid not in uuids
    ]


def _cause(view: View, environment: dict[str, str]) -> str:
    if not view.environment.get("cuda"):
        return f"torch {view.environment['torch']} is a CPU wheel"
    if environment.get("CUDA_VISIBLE_DEVICES") is not None:
        return f"CUDA_VISIBLE_DEVICES is {environment['CUDA_VISIBLE_DEVICES']!r}"
    if environment.get("NVIDIA_VISIBLE_DEVICES") in ("", "void", "none"):
        return f"NVIDIA_VISIBLE_DEVICES is {environment['NVIDIA_VISIBLE_DEVICES']!r}"
    cause = cuda_init_errors.known(view)
    return f"{cause.name}: {cause.means}" if cause else str(view.environment.get("device_error") or _SILENT)


def _fix(view: View, environment: dict[str, str]) -> str:
    if not view.environment.get("cuda"):
        return "install a CUDA wheel: `envcheck resolve` names the one for this driver and GPU"
    if environment.get("CUDA_VISIBLE_DEVICES") is not None:
        return "unset CUDA_VISIBLE_DEVICES"
    cause = cuda_init_errors.known(view)
    return cause.fix if cause else _FIX
