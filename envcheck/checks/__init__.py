"""What a check is: one file with a docstring that says what goes wrong, a CHECK, and a pure `judge`.

    checks/node/<id>.py   CHECK, judge(view)                          judges the Snapshot
    checks/env/<id>.py    CHECK, measure(rank), judge(view, ranks)    measures in the target's Python, then judges

The file's name is the check's id (`_` typed as `-`). The author writes no try, no timer, no JSON, no exit code and no
registration. Foreign interpreters import this file: standard library only, Python >= 3.9.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from envcheck.counting import numbered
from envcheck.node.snapshot import Snapshot

PASS, WARN, FAIL, SKIP, ERROR = "pass", "warn", "fail", "skip", "error"
LEVELS = ("static", "quick", "standard", "full")
# A failure that was seen outranks what could not be read, and both outrank a warning.
WORST_FIRST = (FAIL, ERROR, WARN, SKIP, PASS)
# The code of a value that is no finite number.
NOT_FINITE = "value.not-finite"
# How many findings a summary line quotes; the report lists all of them.
SHOWN = 3


@dataclasses.dataclass(frozen=True)
class Check:
    """One promise about an environment.

    `level` is the first level that runs it; `seconds` what it takes, `timeout` when it is ended (both per attempt);
    `cpu_seconds` what it takes on a machine without a GPU, where that differs; `factor_at` how many times as long a
    level takes that runs more or less of it (`cpu_factor_at` without a GPU, where that differs).
    `gpus` is how many GPUs it needs at least (fewer: skip). `ranks` is 1, or 0 for one rank a GPU (a CPU: `--nproc`),
    of which it needs `least_ranks` (fewer: skip, and nothing is started).
    `signals` are the signals of the snapshot that it needs.
    `performance` marks a value that is measured a second time before it fails.
    `imports` are the modules that it loads besides torch and that take long: they are imported once for all checks.
    `limits` name the rows of limits.json that it is judged by, beside those that bear its id.
    `probe` marks the one that tries peer-to-peer before the groups do: it runs first of its level, and where it is lost
    while it copies, or a rank says `broken`, the groups after it go without (runner/worker/fork_server.py).
    """

    promise: str
    level: str
    seconds: float = 0.1
    cpu_seconds: float | None = None
    factor_at: Mapping[str, float] = dataclasses.field(default_factory=dict)
    cpu_factor_at: Mapping[str, float] = dataclasses.field(default_factory=dict)
    timeout: float = 30.0
    gpus: int = 0
    ranks: int = 1
    least_ranks: int = 1
    signals: tuple[str, ...] = ()
    performance: bool = False
    imports: tuple[str, ...] = ()
    probe: bool = False
    limits: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Limit:
    """A bound something was judged by. `source` says who says so; `kind` is "at least", "at most" or "equal"."""

    value: Any
    unit: str
    source: str
    kind: str = "at least"


@dataclasses.dataclass(frozen=True)
class Change:
    """A status that a rule changed after the judge, and why: see OUTCOME_RULES and ROW_RULES in runner/."""

    rule: str
    before: str
    after: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a check, or one finding of it. Only `pass` is a pass.

    `code` is a stable word for programs, `<check or topic>.<reason>`, for example "ecc.uncorrected"; the text of
    `summary` may change. Only a pass has none. Findings with one code and culprit are the same one in each attempt.
    `culprit` names the GPU, rank, link or file that this finding is about; empty where it is about the whole node.
    `remeasure` marks a speed that fell short and nothing else: only such an outcome is measured a second time. Wrong
    data is final.
    `findings` are all findings of the check, worst first; empty where the outcome is its own only finding.
    `changes` say which rules changed the status after the judge.
    """

    status: str
    summary: str
    value: Any = None
    unit: str = ""
    limit: Limit | None = None
    remedy: str = ""
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    code: str = ""
    culprit: str = ""
    remeasure: bool = False
    findings: tuple[Outcome, ...] = ()
    changes: tuple[Change, ...] = ()


@dataclasses.dataclass(frozen=True)
class View:
    """All a judge may look at, plain data, so that an old report can be judged again.

    `environment` is what the target's Python says of itself, as listed in `runner/worker/torch_facts.py`; where torch
    cannot be imported it holds `error`, and what Python alone can say.
    `promises` are an image's labels or a venv's file, without their prefix (cell, torch, cuda, cudnn, nccl, python,
    arch_list …), and `packages` ("a==1 b==2") where the lock they name is at hand; empty for an environment that
    promises nothing. `mode` is "gpu" or "cpu". `matrix` is the Matrix that node checks compare with; None for the
    shipped one. `image` is what the engine says of an image (runs_as, program, history, secrets: see ImageFacts in
    `runner/schema.py`); empty where no image is validated.
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
    `scratch` is an empty directory of the group's own, on each of its nodes. `node` is the number of the rank's node,
    of the group's `nodes`. `level` is that of the run.
    """

    rank: int
    world: int
    local_rank: int
    device: str
    backend: str
    scratch: str
    node: int = 0
    nodes: int = 1
    level: str = "standard"


Measured = dict[str, Any]
Ranks = list[Measured]


def worst(findings: Iterable[Outcome], otherwise: Outcome) -> Outcome:
    """Return one outcome that holds all `findings`, with the status of the worst; `otherwise` if there are none.

    Value, limit and remedy are those of the first of the worst. Findings of findings are flattened.
    """
    flat = [part for finding in findings for part in (finding.findings or (finding,))]
    flat.sort(key=lambda finding: WORST_FIRST.index(finding.status))
    if not flat:
        return otherwise
    first = flat[0]
    leading = _alike(dict.fromkeys(f.summary for f in flat if f.status == first.status))
    more = f"; {len(leading) - SHOWN} more" if len(leading) > SHOWN else ""
    details = {name: value for finding in reversed(flat) for name, value in finding.details.items()}
    if any("gpus" in finding.details for finding in flat):
        # Whoever reads only the outcome must still see every GPU that is blamed at its status.
        blamed = [gpu for f in flat if f.status == first.status for gpu in f.details.get("gpus") or ()]
        details["gpus"] = list(dict.fromkeys(blamed))
    return dataclasses.replace(
        first,
        summary="; ".join(leading[:SHOWN]) + more,
        details=details,
        remeasure=all(f.remeasure for f in flat if f.status in (FAIL, ERROR)) and first.remeasure,
        findings=tuple(flat),
    )


# What follows the name of one GPU as its verb ("is lost"), after a bracket perhaps: it fits no several.
_OF_ONE = re.compile(r"(?: \([^)]*\))? (?:is|has|does|reaches)\b")


def _alike(texts: Iterable[str]) -> list[str]:
    """Return the texts, where one stands for those that differ by a GPU's number: "ECC is off on GPUs 0, 1 and 2"."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for text in texts:
        before, *named = re.split(r"\bGPU (\d+)\b", text)
        names_one = len(named) == 2 and not _OF_ONE.match(named[1])  # noqa: PLR2004 (its number, and what follows)
        groups.setdefault((before, named[1]) if names_one else (text,), []).append(named[0] if names_one else "")
    together = (numbered("GPU", numbers).join(around) for around, numbers in groups.items())
    return [re.sub(r"(GPUs (?:\d+, )*\d+ and \d+) (?=\d)", r"\1: ", text) for text in together]


def _unit(value: Any, limit: Limit | None) -> str:
    return limit.unit if limit is not None and value is not None else ""


def passed(summary: str, *, value: Any = None, unit: str = "", limit: Limit | None = None, **details: Any) -> Outcome:
    """Return a pass; a value that is no finite number is an error instead."""
    if isinstance(value, float) and not math.isfinite(value):
        return Outcome(ERROR, f"measured {value}: {summary}", details=details, code=NOT_FINITE)
    return Outcome(PASS, summary, value, unit or _unit(value, limit), limit, "", details)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Makes outcomes of one status that cannot be without a remedy; the runner names one without a code."""

    status: str
    remeasure: bool = False

    def __call__(
        self,
        summary: str,
        *,
        fix: str,
        code: str = "",
        culprit: str = "",
        value: Any = None,
        unit: str = "",
        limit: Limit | None = None,
        **details: Any,
    ) -> Outcome:
        """Return the outcome, with what to do; a value has its limit's unit.

        Wrong data may be no number, which no report can hold: it is left out. Of a speed or a warning it is an error.
        """
        if self.status == FAIL and not self.remeasure and isinstance(value, float) and not math.isfinite(value):
            value = None
        unit = unit or _unit(value, limit)
        return Outcome(self.status, summary, value, unit, limit, fix, details, code, culprit, self.remeasure)


warned, failed = Verdict(WARN), Verdict(FAIL)
# A failure of speed alone: it is measured a second time, and the second attempt counts. Never for wrong or missing
# data, or an exception: `failed` is final.
too_slow = Verdict(FAIL, remeasure=True)


def skipped(reason: str, *, code: str = "", culprit: str = "", **details: Any) -> Outcome:
    """Return that the check does not apply here, and why."""
    return Outcome(SKIP, reason, details=details, code=code, culprit=culprit)


def undecided(
    reason: str, *, fix: str = "see the check's log", code: str = "", culprit: str = "", **details: Any
) -> Outcome:
    """Return that it could not be checked, and why: an `error`, never a pass."""
    return Outcome(ERROR, reason, remedy=fix, details=details, code=code, culprit=culprit)
