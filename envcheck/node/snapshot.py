"""What was read off a node at one moment: every signal has its value, or the reason why it could not be read.

Standard library only: the check interface, which foreign interpreters import, stands on it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

SCHEMA = "envcheck/snapshot/1"


@dataclasses.dataclass(frozen=True)
class Signal:
    """One thing read off a node. Exactly one of `value` and `reason` is set."""

    value: Any = None
    reason: str | None = None
    unit: str | None = None
    source: str = ""


UNREAD = Signal(reason="not collected")


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One GPU as NVML shows it, keyed by UUID; `signals` as in Snapshot."""

    uuid: str
    signals: dict[str, Signal] = dataclasses.field(default_factory=dict)

    def signal(self, name: str) -> Signal:
        """Return the signal called `name`; UNREAD when it was never collected."""
        return self.signals.get(name, UNREAD)


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """All signals of a node at one moment (`taken` is UTC, ISO 8601). No GPU or no NVML: `gpus` is empty."""

    taken: str = ""
    signals: dict[str, Signal] = dataclasses.field(default_factory=dict)
    gpus: list[Gpu] = dataclasses.field(default_factory=list)
    schema: str = SCHEMA

    def signal(self, name: str) -> Signal:
        """Return the signal called `name`; UNREAD when it was never collected."""
        return self.signals.get(name, UNREAD)
