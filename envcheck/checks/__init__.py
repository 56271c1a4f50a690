"""What a check is: one file with a docstring that says what goes wrong in the wild, a CHECK, and a pure `judge`.

    checks/node/<id>.py   CHECK, judge(view)                          judges the Snapshot
    checks/env/<id>.py    CHECK, measure(rank), judge(view, ranks)    measures in the target's Python, then judges

The file's name is the check's id (`_` typed as `-`). The author writes no try, no timer, no JSON, no exit code and no
registration. Foreign interpreters import this file: standard library only, Python >= 3.9.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from envcheck.node.snapshot import Snapshot

PASS, WARN, FAIL, SKIP, ERROR = "pass", "warn", "fail", "skip", "error"
LEVELS = ("static", "quick", "standard", "full")


@dataclasses.dataclass(frozen=True)
class Check:
    """One promise about an environment.

    `level` is the first level that runs it; `seconds` what it takes, `timeout` when it is ended (both per attempt).
    `gpus` is how many GPUs it needs at least (fewer: skip). `ranks` is 1, or 0 for one rank a GPU (a CPU: `--nproc`),
    of which it needs `least_ranks` (fewer: skip, and nothing is started).
    `signals` are the snapshot's names it cannot be told without.
    `performance` marks a value that is measured a second time before it fails.
    `imports` are the modules that it loads besides torch and that take long: they are imported once for all checks.
    `probe` marks the one that tries peer-to-peer before the groups do: it runs first of its level, and where it is lost
    while it copies, or a rank says `broken`, the groups after it go without (runner/worker_peers.py).
    """

    promise: str
    level: str
    seconds: float = 0.1
    timeout: float = 30.0
    gpus: int = 0
    ranks: int = 1
    least_ranks: int = 1
    signals: tuple[str, ...] = ()
    performance: bool = False
    imports: tuple[str, ...] = ()
    probe: bool = False


@dataclasses.dataclass(frozen=True)
class Limit:
    """A bound something was judged by. `source` says who says so; `kind` is "at least", "at most" or "equal"."""

    value: Any
    unit: str
    source: str
    kind: str = "at least"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a check came to. Only `pass` is a pass."""

    status: str
    summary: str
    value: Any = None
    unit: str = ""
    limit: Limit | None = None
    remedy: str = ""
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class View:
    """All a judge may look at, plain data, so that an old report can be judged again.

    `environment` is what the target's Python says of itself, as listed in `runner/worker_facts.py`; of a torch that
    cannot be imported it holds `error`, and what Python alone can say.
    `promises` are an image's labels or a venv's file, without their prefix (cell, torch, cuda, cudnn, nccl, python,
    arch_list …), and `packages` ("a==1 b==2") where the lock they name is at hand; empty for an environment that
    promises nothing. `mode` is "gpu" or "cpu". `matrix` is the Matrix that node checks compare with; None for the
    shipped one. `image` is what the engine says of an image (runs_as, program, history, secrets: see ImageFacts in
    `runner/record.py`); empty for what is none.
    """

    snapshot: Snapshot
    environment: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    promises: Mapping[str, str] = dataclasses.field(default_factory=dict)
    mode: str = "cpu"
    matrix: Any = None
    image: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Rank:
    """Where one process of a group stands. `device` is "cuda:N" or "cpu"; `backend` "nccl" or "gloo".

    MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE and LOCAL_RANK are in the environment too, as torchrun sets them.
    `scratch` is an empty directory of the group's own.
    """

    rank: int
    world: int
    local_rank: int
    device: str
    backend: str
    scratch: str


Measured = dict[str, Any]
Ranks = list[Measured]


def passed(summary: str, *, value: Any = None, unit: str = "", limit: Limit | None = None, **details: Any) -> Outcome:
    """Return a pass; a value that is no finite number is an error instead."""
    if isinstance(value, float) and not math.isfinite(value):
        return undecided(f"measured {value}: {summary}", **details)
    return Outcome(PASS, summary, value, unit, limit, "", details)


def warned(
    summary: str, *, fix: str, value: Any = None, unit: str = "", limit: Limit | None = None, **details: Any
) -> Outcome:
    """Return a warning, with what to do."""
    return Outcome(WARN, summary, value, unit, limit, fix, details)


def failed(
    summary: str, *, fix: str, value: Any = None, unit: str = "", limit: Limit | None = None, **details: Any
) -> Outcome:
    """Return a failure, with what to do."""
    return Outcome(FAIL, summary, value, unit, limit, fix, details)


def skipped(reason: str, **details: Any) -> Outcome:
    """Return that the check does not apply here, and why."""
    return Outcome(SKIP, reason, details=details)


def undecided(reason: str, *, fix: str = "", **details: Any) -> Outcome:
    """Return that it could not be told, and why: an `error`, never a pass."""
    return Outcome(ERROR, reason, remedy=fix, details=details)
