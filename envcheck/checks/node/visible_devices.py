"""One typing error in CUDA_VISIBLE_DEVICES, and CUDA goes on with fewer GPUs, or with others, and says nothing.

Seen in the wild: "0,1,2,4,4" (none at all), "0,1,8" on eight GPUs (two), "GPU-1a2b, GPU-3c4d" with a blank (one), a -1
of some scheduler in the middle (all after it are gone), several MIG instances (the first), and index 0 that is the
faster card for CUDA and the other one for nvidia-smi.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from envcheck.checks import Check, Limit, Outcome, View, failed, passed, skipped, undecided, warned, worst
from envcheck.checks.readings import visible_gpus
from envcheck.counting import counted

CHECK = Check(promise="CUDA_VISIBLE_DEVICES means what it says", level="quick", seconds=0.01, gpus=1)

NAME: Final = "CUDA_VISIBLE_DEVICES"
_LIMIT: Final = Limit(
    0, "entries", "CUDA C++ Programming Guide, environment variables; pytorch, _parse_visible_devices", "equal"
)
_FIX: Final = "write each GPU once, by its index or UUID of `nvidia-smi -L`, with commas and without blanks"
_ORDER: Final = "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name the GPUs by UUID"


def judge(view: View) -> Outcome:
    """Fail where CUDA shows none of what is named, warn where it shows less or something else."""
    environment = view.snapshot.signal("env").value
    if not isinstance(environment, dict):
        return undecided("the environment was not read", fix="take the snapshot again", code="visible-devices.unread")
    value = environment.get(NAME)
    if value is None:
        return skipped(f"{NAME} is not set: CUDA shows every GPU", code="visible-devices.unset")
    read = visible_gpus.parse(str(value), [gpu.uuid for gpu in view.snapshot.gpus])
    if read.repeated is not None:
        summary = f"{NAME}={value}: {read.repeated} comes twice, and CUDA then shows no GPU at all"
        return failed(summary, fix=_FIX, value=1, unit=_LIMIT.unit, limit=_LIMIT, code="visible-devices.repeated")
    findings = _surprises(view, str(value), read, environment)
    if read.ignored:
        names = ", ".join(repr(entry) if entry != entry.strip() or not entry else entry for entry in read.ignored)
        summary = (
            f"{NAME}={value}: {names} {'are' if len(read.ignored) > 1 else 'is'} ignored, "
            f"CUDA shows {counted(read.gpus, 'GPU')}"
        )
        verdict = warned if read.chosen else failed
        findings = [_finding(verdict, summary, len(read.ignored), "visible-devices.ignored"), *findings]
    text = f"{NAME}={value}: {read.gpus} of {counted(len(view.snapshot.gpus), 'GPU')}, as written"
    return worst(findings, passed(text, value=0, unit=_LIMIT.unit, limit=_LIMIT))


def _finding(verdict: Callable[..., Outcome], text: str, value: int, code: str, fix: str = _FIX) -> Outcome:
    return verdict(text, fix=fix, value=value, unit=_LIMIT.unit, limit=_LIMIT, code=code)


def _surprises(view: View, value: str, read: visible_gpus.VisibleGpus, environment: dict[str, str]) -> list[Outcome]:
    """Return a warning for each way in which CUDA shows something else than the value seems to say."""
    findings = []
    if read.misread:
        summary = f"{NAME}={value}: only the number at the beginning of {', '.join(read.misread)} counts"
        findings.append(_finding(warned, summary, len(read.misread), "visible-devices.misread"))
    if read.gpus < len(read.chosen):
        summary = f"{NAME} names {len(read.chosen)} MIG instances, and CUDA shows the first"
        fix = "start one process an instance, each with one name"
        findings.append(_finding(warned, summary, len(read.chosen) - read.gpus, "visible-devices.mig", fix))
    models = {str(gpu.signal("name").value) for gpu in view.snapshot.gpus}
    by_index = any(isinstance(entry, int) for entry in read.chosen) and not value.startswith("GPU-")
    hides = by_index and len(read.chosen) < len(view.snapshot.gpus)
    if hides and len(models) > 1 and environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        summary = f"{NAME}={value} on unlike GPUs: CUDA counts the fastest first, nvidia-smi by PCI bus"
        findings.append(_finding(warned, summary, len(read.chosen), "visible-devices.order", _ORDER))
    return findings
