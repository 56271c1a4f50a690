"""nvidia-smi shows eight GPUs, torch shows none, and training goes on quietly on the CPU.

Seen in the wild: a CPU wheel pulled in by some requirement, CUDA_VISIBLE_DEVICES="" left over from a test, an index in
it that does not exist (CUDA ignores everything after it), a driver too old for the wheel, a container without the
compute capability.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from envcheck.checks import Check, Limit, Outcome, View, failed, passed, skipped, undecided, warned
from envcheck.node.snapshot import Snapshot

CHECK = Check(promise="torch sees every GPU that NVML sees, less those hidden on purpose", level="quick", gpus=1)

_SOURCE = "NVML's device count, after CUDA_VISIBLE_DEVICES (CUDA C++ Programming Guide, environment variables)"


class Wanted(NamedTuple):
    """How many GPUs CUDA should show, and the entries of CUDA_VISIBLE_DEVICES it will not honour."""

    gpus: int
    ignored: list[str]


def wanted(visible: str | None, uuids: list[str]) -> Wanted:
    """Apply CUDA_VISIBLE_DEVICES: by index or UUID prefix, up to the first entry that names nothing."""
    if visible is None:
        return Wanted(len(uuids), [])
    entries = [entry.strip() for entry in visible.split(",") if entry.strip()]
    for position, entry in enumerate(entries):
        by_index = entry.isdecimal() and int(entry) < len(uuids)
        by_uuid = entry.startswith("MIG-") or (
            entry.startswith("GPU-") and sum(u.startswith(entry) for u in uuids) == 1
        )
        if not by_index and not by_uuid:
            return Wanted(position, entries[position:])
    return Wanted(len(entries), [])


def judge(view: View) -> Outcome:
    """Compare the counts, then the UUIDs; a GPU that torch does not see is a failure with its likeliest cause."""
    seen, torch = view.environment.get("device_count"), view.environment.get("torch")
    if not torch:
        return skipped(f"no torch to compare with: {view.environment.get('error', 'none was asked')}")
    if seen is None:
        return undecided("torch was not asked for its devices", fix="see device_facts_error in the report")
    environment = view.snapshot.signal("env").value or {}
    uuids = [gpu.uuid for gpu in view.snapshot.gpus]
    expected = wanted(environment.get("CUDA_VISIBLE_DEVICES"), uuids)
    limit = Limit(expected.gpus or len(uuids), "GPUs", _SOURCE, "equal")
    if seen == 0 or seen < expected.gpus:
        summary = f"NVML sees {len(uuids)} GPU(s), torch {seen}: {_cause(view, environment)}"
        return failed(summary, fix=_fix(view, environment), value=seen, unit="GPUs", limit=limit)
    stranger = _stranger(view.snapshot, view.environment.get("devices") or [])
    if stranger or seen > max(expected.gpus, len(uuids)):
        why = stranger or f"torch sees {seen} GPUs, NVML only {len(uuids)}"
        return undecided(why, fix="compare `nvidia-smi -L` inside and outside the container")
    if expected.ignored:
        why = f"CUDA_VISIBLE_DEVICES names what is not there: {', '.join(expected.ignored)} is ignored"
        return warned(why, fix="correct CUDA_VISIBLE_DEVICES", value=seen, unit="GPUs", limit=limit)
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
    return str(view.environment.get("device_error") or "CUDA shows fewer, without an error")


def _fix(view: View, environment: dict[str, str]) -> str:
    if not view.environment.get("cuda"):
        return "install a CUDA wheel: `envcheck resolve` names the one for this driver and GPU"
    if environment.get("CUDA_VISIBLE_DEVICES") is not None:
        return "unset CUDA_VISIBLE_DEVICES"
    return "compare the driver with torch's CUDA (check driver-cuda); in a container use --gpus all with `compute`"
