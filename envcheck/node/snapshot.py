"""What was read off a node at one moment: every signal has its value, or the reason why it could not be read.

Standard library only, and Python 3.9: the check interface, which foreign interpreters import, stands on it.
"""

from __future__ import annotations

import dataclasses
import errno
from typing import Any, Literal

# not-collected   the envcheck that took the snapshot did not ask
# unsupported     this hardware, driver, kernel or sandbox has nothing of the kind
# denied          whoever asked may not know
# no-data         it exists, and had no answer: an empty log, a field that the driver does not fill in
# failed          reading it broke, or gave what cannot be
# lost            the GPU does not answer any more
# reset-required  the GPU does not answer until it is reset
# mismatch        the driver's libraries and the kernel module are of two versions
# timed-out       no answer in time
Why = Literal[
    "not-collected", "unsupported", "denied", "no-data", "failed", "lost", "reset-required", "mismatch", "timed-out"
]
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENODEV, errno.ENXIO, errno.ENOSYS, errno.EOPNOTSUPP)
SCHEMA = "envcheck/snapshot/1"
# NVML's bits, from the lowest on.
_CLOCK_WORDS = (
    *("idle", "applications clocks", "software power cap", "hardware slowdown", "sync boost"),
    *("software thermal slowdown", "hardware thermal slowdown", "power brake", "display clocks"),
)


def of_os_error(error: OSError) -> Why:
    """Return why a file or a process could not be read; an errno that says nothing of the kind is a failure."""
    if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
        return "timed-out"
    if error.errno in _NOT_THERE:
        return "unsupported"
    return "denied" if error.errno in (errno.EACCES, errno.EPERM) else "failed"


@dataclasses.dataclass(frozen=True)
class Signal:
    """One thing read off a node. Exactly one of `value` and `reason` is set.

    `why` says in one word what `reason` says to people; None where there is a value.
    """

    value: Any = None
    reason: str | None = None
    unit: str | None = None
    source: str = ""
    why: Why | None = None


UNREAD = Signal(reason="not collected", why="not-collected")


def unreadable(error: OSError, subject: object, unit: str | None = None, source: str | None = None) -> Signal:
    """Return the signal of `subject` (usually a path) that the system refused; `source` defaults to `subject`."""
    reason = f"{subject}: {error.strerror}"
    return Signal(reason=reason, why=of_os_error(error), unit=unit, source=str(subject) if source is None else source)


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


def clock_words(bits: int) -> list[str]:
    """Return the reasons that a GPU gives for its clocks."""
    names = [name for place, name in enumerate(_CLOCK_WORDS) if bits >> place & 1]
    unnamed = bits >> len(_CLOCK_WORDS) << len(_CLOCK_WORDS)
    return [*names, f"unknown 0x{unnamed:x}"] if unnamed else names
