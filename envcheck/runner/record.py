"""What a run leaves behind, as typed data: the parts a report is made of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

Status = Literal["pass", "warn", "fail", "skip", "error"]
VerdictStatus = Literal["pass", "fail", "error"]
Mode = Literal["gpu", "cpu", "unknown"]


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every part."""


class Planned(Row, frozen=True, kw_only=True):
    """One check of a plan. `ranks` 0 is one a GPU, or `nproc` on a CPU; seconds and timeout are of one attempt."""

    id: str
    kind: Literal["node", "env"]
    level: str
    promise: str
    seconds: float
    timeout: float
    gpus: int
    ranks: int
    performance: bool


class Plan(Row, frozen=True, kw_only=True):
    """What a run will do, printable before it does it."""

    level: str
    checks: list[Planned]
    nproc: int
    require_gpu: bool = False

    @property
    def seconds(self) -> float:
        """Return how long the checks themselves are expected to take."""
        return sum(check.seconds for check in self.checks)


class TargetFacts(Row, frozen=True, kw_only=True):
    """Whose environment was run. `chosen` says why this one; `image_id` is the engine's sha256 of an image."""

    kind: Literal["python", "image"]
    name: str
    chosen: str
    image_id: str | None = None


class LimitRow(Row, frozen=True, kw_only=True):
    """A bound something was judged by, and who says so."""

    value: Any
    unit: str
    source: str
    kind: str


class Attempt(Row, frozen=True, kw_only=True):
    """One measurement of a check: what it came to alone, how long it took, and how much of that was `measure`."""

    status: Status
    value: Any
    seconds: float
    body: float


class OutcomeRow(Row, frozen=True, kw_only=True):
    """What a check came to. `ranks` are the measurements it was judged by, `log` what its processes said last."""

    id: str
    kind: Literal["node", "env"]
    status: Status
    summary: str
    value: Any = None
    unit: str = ""
    limit: LimitRow | None = None
    remedy: str = ""
    details: dict[str, Any] = {}
    seconds: float = 0.0
    attempts: list[Attempt] = []
    ranks: list[Any] = []
    log: str = ""


class Verdict(Row, frozen=True, kw_only=True):
    """What a run came to: `status`, the exit code that says the same, and the sentence a report ends with."""

    status: VerdictStatus
    exit_code: int
    sentence: str
    counts: dict[str, int]


def plain(value: Any) -> Any:
    """Return a measured value as JSON can hold it: what is not finite becomes "nan", "inf" or "-inf", not null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, (list, tuple, set, frozenset)) else str(value)
