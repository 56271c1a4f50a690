"""One typing error in CUDA_VISIBLE_DEVICES, and CUDA goes on with fewer GPUs, or with others, and says nothing.

"0,1,2,4,4" gives none at all, "0,1,8" on eight GPUs two, "GPU-1a2b, GPU-3c4d" with a blank one, several MIG instances
the first, and after a -1 all are gone. Index 0 is the faster card for CUDA and may be another one for nvidia-smi.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

from envcheck.checks import Check, Limit, Outcome, View, failed, passed, skipped, undecided, warned, worst
from envcheck.counting import counted

CHECK = Check("CUDA_VISIBLE_DEVICES means what it says", "quick", 0.01, gpus=1)

NAME = "CUDA_VISIBLE_DEVICES"
_LIMIT = Limit(
    0, "entries", "CUDA C++ Programming Guide, environment variables; pytorch, _parse_visible_devices", "equal"
)
_FIX = "write each GPU once, by its index or UUID of `nvidia-smi -L`, with commas and without blanks"
_ORDER = "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name the GPUs by UUID"
_NUMBER = re.compile(r"[+-]?\d+")
_HIDING = ("", "-1", "NoDevFiles")


class VisibleGpus(NamedTuple):
    """What a value comes to. `chosen` are indices as NVML counts, or MIG instances by name.

    `ignored` are the entries from the first that names nothing; `repeated` is one that comes twice, which hides all;
    `misread` are entries of whose text only the beginning counts.
    """

    chosen: list[int | str]
    ignored: list[str]
    repeated: str | None = None
    misread: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        """Return how many devices CUDA shows: of several MIG instances one."""
        if self.repeated is not None:
            return 0
        return min(1, len(self.chosen)) if any(isinstance(name, str) for name in self.chosen) else len(self.chosen)


def parse(value: str | None, uuids: list[str]) -> VisibleGpus:
    """Read a value, on a machine whose GPUs have these UUIDs in NVML's order, as CUDA and torch do.

    Indices are read as C's strtoul does ("1gpu" is 1), up to the first entry that names nothing; a name that comes
    twice hides everything (pytorch, torch/cuda/__init__.py: _parse_visible_devices; CUDA C++ Programming Guide,
    environment variables).
    """
    if value is None:
        return VisibleGpus(list(range(len(uuids))), [])
    entries = value.split(",")
    by_name = entries[0].startswith(("GPU-", "MIG-"))
    chosen: list[int | str] = []
    misread: list[str] = []
    for position, entry in enumerate(entries):
        indexes = _named(entry, uuids) if by_name else _numbered(entry, len(uuids))
        if indexes is None:
            return VisibleGpus(chosen, [] if value.strip() in _HIDING else entries[position:], None, tuple(misread))
        if indexes in chosen:
            return VisibleGpus(chosen, [], entry.strip())
        chosen.append(indexes)
        if not by_name and not entry.strip().isdecimal():
            misread.append(entry.strip())
    return VisibleGpus(chosen, [], None, tuple(misread))


def _numbered(entry: str, count: int) -> int | None:
    number = _NUMBER.match(entry.strip())
    return int(number[0]) if number and 0 <= int(number[0]) < count else None


def _named(entry: str, uuids: list[str]) -> int | str | None:
    if entry.startswith("MIG-"):
        return entry
    fits = [index for index, uuid in enumerate(uuids) if uuid.startswith(entry)] if entry.startswith("GPU-") else []
    return fits[0] if len(fits) == 1 else None


def judge(view: View) -> Outcome:
    """Fail where CUDA shows none of what is named, warn where it shows less or something else."""
    environment = view.snapshot.signal("env").value
    if environment is None:
        return undecided("the environment was not read", fix="take the snapshot again", code="visible-devices.unread")
    value = environment.get(NAME)
    if value is None:
        return skipped(f"{NAME} is not set: CUDA shows every GPU", code="visible-devices.unset")
    read = parse(value, [gpu.uuid for gpu in view.snapshot.gpus])
    if read.repeated is not None:
        summary = f"{NAME}={value}: {read.repeated} comes twice, and CUDA then shows no GPU at all"
        return _finding(failed, summary, 1, "visible-devices.repeated")
    findings = _surprises(view, value, read, environment)
    if read.ignored:
        names = ", ".join(repr(entry) if entry != entry.strip() or not entry else entry for entry in read.ignored)
        are = "are" if len(read.ignored) > 1 else "is"
        summary = f"{NAME}={value}: {names} {are} ignored, CUDA shows {counted(read.gpus, 'GPU')}"
        verdict = warned if read.chosen else failed
        findings = [_finding(verdict, summary, len(read.ignored), "visible-devices.ignored"), *findings]
    text = f"{NAME}={value}: {read.gpus} of {counted(len(view.snapshot.gpus), 'GPU')}, as written"
    return worst(findings, passed(text, value=0, limit=_LIMIT))


def _finding(verdict: Callable[..., Outcome], text: str, value: int, code: str, fix: str = _FIX) -> Outcome:
    return verdict(text, fix=fix, value=value, limit=_LIMIT, code=code)


def _surprises(view: View, value: str, read: VisibleGpus, environment: dict[str, str]) -> list[Outcome]:
    findings = []
    if read.misread:
        summary = f"{NAME}={value}: only the number at the beginning of {', '.join(read.misread)} counts"
        findings.append(_finding(warned, summary, len(read.misread), "visible-devices.misread"))
    if read.gpus < len(read.chosen):
        summary = f"{NAME} names {len(read.chosen)} MIG instances, and CUDA shows the first"
        fix = "start one process an instance, each with one name"
        findings.append(_finding(warned, summary, len(read.chosen) - read.gpus, "visible-devices.mig", fix))
    models = {gpu.signal("name").value for gpu in view.snapshot.gpus}
    by_index = any(isinstance(entry, int) for entry in read.chosen) and not value.startswith("GPU-")
    hides = by_index and len(read.chosen) < len(view.snapshot.gpus)
    if hides and len(models) > 1 and environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        summary = f"{NAME}={value} on unlike GPUs: CUDA counts the fastest first, nvidia-smi by PCI bus"
        findings.append(_finding(warned, summary, len(read.chosen), "visible-devices.order", _ORDER))
    return findings
