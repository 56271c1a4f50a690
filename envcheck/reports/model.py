"""The report of one run: a typed document with a published JSON Schema, written whole or not at all.

Its evidence, the snapshot and what was measured, is judged again by the rules of another day.
"""

import os
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec import structs

from envcheck import __version__, safe_files
from envcheck.checks import ERROR, FAIL, SKIP, Outcome
from envcheck.errors import refuse
from envcheck.node.collect import sound_facts
from envcheck.node.snapshot import Snapshot
from envcheck.runner import judging, outcomes
from envcheck.runner.execute import Run
from envcheck.runner.launcher import Place, place
from envcheck.runner.outcomes import fields, plain
from envcheck.runner.planning import CheckModule, discover
from envcheck.runner.schema import (
    Attempt,
    GroupFacts,
    Mode,
    OutcomeRow,
    Plan,
    Row,
    RunVerdict,
    TargetFacts,
    Timing,
    encodable,
)
from envcheck.runner.worker.rank_group import KEPT
from envcheck.runner.worker_session import RunPlan

SCHEMA: Final = "envcheck/report/1"
_FIX: Final = "give the file that `envcheck run --output` of this version wrote"
# What a run adds by itself, from the plan and the snapshot.
_OWN = ("require-gpu", "torch", judging.LOST_GPUS)
_AGAIN: Final = "run `envcheck run --only {}`; find out who changed the report"
LACKING: Final = "today's rule needs what this report does not hold: "


class HostFacts(Row, frozen=True, kw_only=True):
    """The machine that envcheck ran on, its load when the run began, and its place in a launcher's group."""

    name: str
    system: str
    kernel: str
    arch: str
    cpus: int
    load: float | None = None
    place: Place


class RunReport(Row, frozen=True, kw_only=True):
    """One run. Times are UTC, ISO 8601; `ended` is empty and `verdict` never a pass while it is not over.

    `resolution` is what the resolver said of this machine and torch, when it was asked; `boot` the kernel's name for
    the boot it ran in; `resumed` when it was gone on with after it was cut short; `judged_by` the version of envcheck
    that judged its evidence again; `group` the nodes whose ranks measured together.
    """

    schema: Literal["envcheck/report/1"] = SCHEMA
    tool: str
    started: str
    ended: str
    host: HostFacts
    target: TargetFacts
    mode: Mode
    plan: Plan
    environment: dict[str, Any]
    promises: dict[str, str]
    snapshot: Snapshot
    outcomes: list[OutcomeRow]
    verdict: RunVerdict
    resolution: str | None = None
    boot: str = ""
    resumed: tuple[str, ...] = ()
    timing: Timing | None = None
    judged_by: str = ""
    group: GroupFacts | None = None


def report_of(run: Run) -> RunReport:
    """Return the report of a run, over or not."""
    report = RunReport(
        tool=__version__,
        started=run.started,
        ended=run.ended,
        host=HostFacts(
            name=platform.node(),
            system=platform.system(),
            kernel=platform.release(),
            arch=platform.machine(),
            cpus=len(os.sched_getaffinity(0)),
            load=run.load,
            place=place(os.environ),
        ),
        target=run.asked.target.facts,
        mode=run.mode,
        plan=run.asked.plan,
        environment=plain(run.environment),
        promises=run.promises,
        snapshot=run.snapshot,
        outcomes=run.ordered,
        verdict=run.verdict,
        resolution=run.asked.resolution,
        boot=run.boot,
        resumed=tuple(run.resumed),
        timing=Timing(planned=run.asked.plan.seconds, taken=round(run.taken, 3), starting=round(run.starting, 3)),
        group=run.group,
    )
    try:
        msgspec.json.encode(report)
    except UnicodeEncodeError:  # a host's name or a path may be any bytes
        return msgspec.convert(encodable(msgspec.to_builtins(report)), RunReport)
    return report


def run_of(report: RunReport, chosen: Sequence[CheckModule] = (), matrix: Any = None) -> Run:
    """Return the run that a report is of, with its outcomes; nothing can be started in it."""
    target: Any = SimpleNamespace(facts=report.target)  # nothing can be started in it
    asked = RunPlan(plan=report.plan, chosen=chosen, target=target, matrix=matrix)
    run = Run(asked, report.started, report.ended, report.snapshot, report.environment, report.promises)
    run.boot, run.resumed, run.known = report.boot, list(report.resumed), {row.id: row for row in report.outcomes}
    if report.timing is not None:
        run.taken, run.starting = report.timing.taken, report.timing.starting
    return run


def encode(report: RunReport) -> bytes:
    """Return the report as indented JSON with a final newline."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def write(report: RunReport, path: Path) -> None:
    """Replace `path` by the report: a reader, or a crash, finds the old one or the new one."""
    safe_files.replace(path, encode(report))


def load(path: Path) -> RunReport:
    """Return a report from a file. Raise ConfigError, naming the field, if the file is not a report."""
    try:
        content = safe_files.read_whole(path, most=128 << 20)
        if not content.strip():
            refuse(f"{path} is empty", _FIX)
        return msgspec.json.decode(content, type=RunReport)
    except OSError as error:
        refuse(f"cannot read {path}: {error.strerror}", _FIX)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = "it is nested deeper than any report" if isinstance(error, RecursionError) else error
        refuse(f"{path} is not a report of {SCHEMA}: {why}", _FIX)


class RejudgedReport(NamedTuple):
    """The report with today's outcomes; `changed` are (check, before, after), `unknown` what has no check today."""

    report: RunReport
    changed: Sequence[tuple[str, str, str]]
    unknown: list[str]


def rejudge(report: RunReport, matrix: Any = None, site: Path | None = None) -> RejudgedReport:
    """Judge what the report holds by today's rules, and by `matrix` (None: the shipped one)."""
    # Those of the outcomes, too: taken out of the plan, a check would keep whatever the report says of it.
    named = {check.id for check in report.plan.checks} | {row.id for row in report.outcomes if row.status != SKIP}
    chosen = [module for module in discover(site, only=named) if module.id in named]
    run = run_of(report, chosen, matrix)
    run.environment, run.known = sound_facts(report.environment), {}
    unknown = judge_again(run, report.outcomes)
    before = {outcome.id: outcome.status for outcome in report.outcomes}
    new = structs.replace(report, outcomes=run.ordered, verdict=run.verdict, judged_by=__version__)
    changed = [(o.id, str(before.get(o.id, "nothing")), o.status) for o in new.outcomes if o.status != before.get(o.id)]
    return RejudgedReport(new, changed, unknown)


def judge_again(run: Run, before: Iterable[OutcomeRow]) -> list[str]:
    """Judge the evidence of `before` into the run; return the checks that stay as they were, without a rule today.

    What was never measured, or whose processes broke, stays what it was: there is nothing to judge. A planned check
    without a result is an error, and so is a pass or a skip without what it was judged by: that was taken out.
    """
    modules = {f.id: f for f in run.asked.chosen}
    unknown = []
    rows = list(before)
    for old in [*rows, *_left_out(run, rows)]:
        if old.id in modules:
            new = _compared(_with_evidence(run, modules[old.id], _judged_row(run, modules[old.id], old)), old)
            earlier = [change for change in old.changes if change.rule == "judged-again" and change not in new.changes]
            new = structs.replace(new, changes=[*new.changes, *earlier])
            run.known[old.id] = outcomes.changed("judged-again", old, new)
        elif old.id not in _OWN:
            run.known[old.id] = old
            unknown.append(old.id)
    run.known.update(judging.concluded(run.view, run.asked.plan, run.outcomes))
    return unknown


def _left_out(run: Run, rows: Iterable[OutcomeRow]) -> list[OutcomeRow]:
    """Return an error for each check that a run that ended planned, and that has no outcome."""
    modules, there = {f.id: f for f in run.asked.chosen}, {row.id for row in rows}
    planned = [check.id for check in run.asked.plan.checks if run.ended]
    lacking = [identity for identity in planned if identity in modules and identity not in there]
    told: dict[str, Any] = {"status": "error", "code": "worker.result-missing"}
    told["summary"] = "it was planned, and the report does not hold its result"
    return [OutcomeRow(id=i, kind=modules[i].kind, remedy=_AGAIN.format(i), **told) for i in lacking]


def _with_evidence(run: Run, module: CheckModule, row: OutcomeRow) -> OutcomeRow:
    """Return the row; an error for a pass, warning or skip of what is measured, where nothing is left to judge."""
    if module.kind != "env" or row.ranks or row.left_out or row.status in (FAIL, ERROR):
        return row
    if row.status == SKIP and judging.unmeasured(module, run.view, run.asked.plan) is not None:
        return row  # without a GPU, or alone
    summary = "the report does not hold what was measured"
    remedy = _AGAIN.format(row.id)
    return structs.replace(row, status=ERROR, summary=summary, remedy=remedy, code="worker.result-missing", findings=[])


def _judged_row(run: Run, module: CheckModule, old: OutcomeRow) -> OutcomeRow:
    """Judge every attempt again whose measurements are kept; one without them stays what it was."""
    if not old.attempts:
        return _judged(run, module, old, old)
    rows = [_judged(run, module, _alone(old, a) if a.shown else outcomes.single(old, a), old) for a in old.attempts]
    return structs.replace(outcomes.combine(rows), spread=old.spread, left_out=old.left_out)


def _compared(new: OutcomeRow, old: OutcomeRow) -> OutcomeRow:
    """Say of an outcome that only today's rule cannot tell that the report is why, and not the machine."""
    summary = f"{old.status} then; {LACKING}{new.summary}"
    if new.status == old.status == ERROR and old.summary.endswith(f"{LACKING}{new.summary}"):
        summary = old.summary  # judged once before
    elif new.status != ERROR or old.status == ERROR:
        return new
    remedy = f"measure again with `envcheck run --only {new.id}`"
    findings = [structs.replace(f, remedy=remedy) if f.status == ERROR else f for f in new.findings]
    return structs.replace(new, summary=summary, remedy=remedy, findings=findings)


def _alone(old: OutcomeRow, attempt: Attempt) -> OutcomeRow:
    """Return the row of the attempt that is shown, without what others added to it."""
    if len(old.attempts) == 1:
        return old
    summary = attempt.summary or old.summary
    changes = [change for change in old.changes if change.rule not in outcomes.ROW_RULES]
    alone = structs.replace(attempt, shown=True)
    return structs.replace(old, summary=summary, attempts=[alone], spread=None, changes=changes)


def _judged(run: Run, module: CheckModule, row: OutcomeRow, old: OutcomeRow) -> OutcomeRow:
    outcome = _outcome(run, module, row, old)
    if outcome is None:
        return row
    kept = {name: row.details[name] for name in ("survivors", *KEPT) if name in row.details}
    new = structs.replace(row, **fields(outcome), details=plain({**outcome.details, **kept}))
    attempts = [structs.replace(attempt, **outcomes.told(new), shown=True) for attempt in row.attempts]
    return structs.replace(new, attempts=attempts)


def _outcome(run: Run, module: CheckModule, row: OutcomeRow, old: OutcomeRow) -> Outcome | None:
    """Return what a row comes to today; None where there is nothing to judge."""
    if module.kind == "env" and outcomes.measured(row):
        return judging.decide(module, run.view, row.ranks, old.details)
    one_of_many = len(old.attempts) > 1 or (old.spread is not None and old.spread.rounds > 1)
    outcome = judging.unmeasured(module, run.view, run.asked.plan)
    if module.kind == "node" and one_of_many:
        # The report holds the data read from the node last, and not as this attempt saw it; but the worst one counts.
        worse = outcome is not None and outcome.status in (FAIL, ERROR) and row.status not in (FAIL, ERROR)
        return outcome if worse else None
    return outcome
