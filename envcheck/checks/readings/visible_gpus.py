"""CUDA_VISIBLE_DEVICES as CUDA and torch read it, which is not as people write it.

Indices are read as C's strtoul does ("1gpu" is 1), up to the first entry that names nothing; a name that comes twice
hides everything (pytorch, torch/cuda/__init__.py: _parse_visible_devices; CUDA C++ Programming Guide, environment
variables).
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_NUMBER: Final = re.compile(r"[+-]?\d+")
_HIDING: Final = ("", "-1", "NoDevFiles")


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
    """Read a value on a machine whose GPUs have these UUIDs, in NVML's order."""
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
