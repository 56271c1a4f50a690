"""nvidia-smi shows eight GPUs, torch shows none, and training goes on quietly on the CPU.

Seen in the wild: a CPU wheel pulled in by some requirement, CUDA_VISIBLE_DEVICES="" left over from a test, a driver too
old for the wheel, a container without the compute capability. What that variable names wrongly, visible-devices tells.
"""

from __future__ import annotations

from typing import Any

from envcheck.checks import Check, Limit, Outcome, View, failed, passed, skipped, undecided
from envcheck.checks.node import _cuinit, _visible
from envcheck.node.snapshot import Snapshot

CHECK = Check(promise="torch sees every GPU that NVML sees, less those hidden on purpose", level="quick", gpus=1)

_SILENT = "CUDA shows fewer, without an error"
_FIX = "compare the driver with torch's CUDA (check driver-cuda); in a container use --gpus all with `compute`"
_SOURCE = "NVML's device count, after CUDA_VISIBLE_DEVICES (CUDA C++ Programming Guide, environment variables)"


def judge(view: View) -> Outcome:
    """Compare the counts, then the UUIDs; a GPU that torch does not see is a failure with its likeliest cause."""
    seen, torch = view.environment.get("device_count"), view.environment.get("torch")
    if not torch:
        return skipped(f"no torch to compare with: {view.environment.get('error', 'none was asked')}")
    if seen is None:
        return undecided("torch was not asked for its devices", fix="see device_facts_error in the report")
    environment = view.snapshot.signal("env").value
    if isinstance(seen, bool) or not isinstance(seen, int) or seen < 0 or not isinstance(environment, dict):
        return undecided(f"nonsense: {seen!r} devices, environment {str(environment)[:40]}", fix="run it again")
    uuids = [gpu.uuid for gpu in view.snapshot.gpus]
    expected = _visible.parse(environment.get("CUDA_VISIBLE_DEVICES"), uuids)
    limit = Limit(expected.gpus or len(uuids), "GPUs", _SOURCE, "equal")
    if seen == 0 or seen < expected.gpus:
        summary = f"NVML sees {len(uuids)} GPU(s), torch {seen}: {_cause(view, environment)}"
        return failed(summary, fix=_fix(view, environment), value=seen, unit="GPUs", limit=limit)
    stranger = _stranger(view.snapshot, view.environment.get("devices") or [])
    if stranger or seen > max(expected.gpus, len(uuids)):
        why = stranger or f"torch sees {seen} GPUs, NVML only {len(uuids)}"
        return undecided(why, fix="compare `nvidia-smi -L` inside and outside the container")
    hidden = f", {len(uuids) - seen} hidden by CUDA_VISIBLE_DEVICES" if seen < len(uuids) else ""
    return passed(f"torch sees {seen} of {len(uuids)} GPU(s){hidden}", value=seen, unit="GPUs", limit=limit)


def _stranger(snapshot: Snapshot, devices: list[Any]) -> str | None:
    """Name a device of torch's that NVML does not know; under MIG torch's UUIDs are not the GPUs'."""
    if any(gpu.signal("mig_mode").value == "on" for gpu in snapshot.gpus):
        return None
    known = {gpu.uuid for gpu in snapshot.gpus}
    named = [str(device.get("uuid")) for device in devices if device.get("uuid")]
    return next((f"torch's device {uuid} is none that NVML knows" for uuid in named if uuid not in known), None)


def _cause(view: View, environment: dict[str, str]) -> str:
    if not view.environment.get("cuda"):
        return f"torch {view.environment['torch']} is a CPU wheel"
    if environment.get("CUDA_VISIBLE_DEVICES") is not None:
        return f"CUDA_VISIBLE_DEVICES is {environment['CUDA_VISIBLE_DEVICES']!r}"
    if environment.get("NVIDIA_VISIBLE_DEVICES") in ("", "void", "none"):
        return f"NVIDIA_VISIBLE_DEVICES is {environment['NVIDIA_VISIBLE_DEVICES']!r}"
    known = _cuinit.known(view)
    return f"{known.name}: {known.means}" if known else str(view.environment.get("device_error") or _SILENT)


def _fix(view: View, environment: dict[str, str]) -> str:
    if not view.environment.get("cuda"):
        return "install a CUDA wheel: `envcheck resolve` names the one for this driver and GPU"
    if environment.get("CUDA_VISIBLE_DEVICES") is not None:
        return "unset CUDA_VISIBLE_DEVICES"
    known = _cuinit.known(view)
    return known.fix if known else _FIX
