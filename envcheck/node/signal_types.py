"""Each signal's type, from the row that reads it: a value of another kind was not read, whatever wrote it there.

A report is a file that anybody can edit, cut off or mix up, and a driver may answer with anything. So that no judge has
to test every number, a value that does not fit its type becomes the reason why there is none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from envcheck.node import collect
from envcheck.node.snapshot import Gpu, Signal, Snapshot
from envcheck.node.sources import nvml_queries
from envcheck.node.value_types import ValueType, fields, listed, maybe, string, text, whole

NODE: Final[dict[str, ValueType]] = {
    **{name: type_ for task in collect.sources(Path("/"), {}) for name, type_ in task.types.items()},
    "origin": text,  # of a snapshot that was not collected: who made it
}
GPU: Final = nvml_queries.TYPES
_MAY_BE_NONE: Final = ("python", "torch", "cuda", "cudnn", "nccl", "hip", "git_version", "libcuda")
_ERRORS: Final = ("error", "build_facts_error", "device_error", "device_facts_error")
FACTS: Final[dict[str, ValueType]] = {
    **dict.fromkeys(_MAY_BE_NONE, maybe(text)),
    "executable": text,
    "prefix": text,
    **dict.fromkeys(_ERRORS, maybe(string)),
    "arch_list": maybe(listed(text)),
    "cuinit": maybe(whole),
    "device_count": whole,
    "devices": listed(fields(uuid=maybe(text))),
}


def sound(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with a reason in place of each value that does not fit its signal's type."""
    gpus = [Gpu(gpu.uuid, _sound(gpu.signals, GPU)) for gpu in snapshot.gpus]
    return dataclasses.replace(snapshot, signals=_sound(snapshot.signals, NODE), gpus=gpus)


def sound_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what torch says of itself, less what does not fit its type: nobody said it."""
    return {name: value for name, value in facts.items() if name not in FACTS or FACTS[name](value)}


def _sound(signals: Mapping[str, Signal], types: Mapping[str, ValueType]) -> dict[str, Signal]:
    return {name: _checked(signal, types.get(name)) for name, signal in signals.items()}


def _checked(signal: Signal, type_: ValueType | None) -> Signal:
    if signal.reason is not None or type_ is None or type_(signal.value):
        return signal
    reason = f"read as {_short(signal.value)}, which it cannot be"
    return Signal(reason=reason, why="failed", unit=signal.unit, source=signal.source)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004 (a line's worth)
