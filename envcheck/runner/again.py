"""Yesterday's evidence under today's rules: a run's stored snapshot and measurements, judged again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec import convert, structs

from envcheck.checks import ERROR, PASS, Outcome
from envcheck.errors import UnavailableError
from envcheck.runner import judge, peers
from envcheck.runner.discover import Found
from envcheck.runner.drive import insist_on_gpu, unmeasured
from envcheck.runner.outcomes import limit_row
from envcheck.runner.record import OutcomeRow, Status, TargetFacts, plain
from envcheck.runner.run import Run
from envcheck.runner.target import Handle

_INSISTED = "require-gpu"


class Past:
    """The target of a run that is over: nothing can be started in it."""

    ours = False

    def __init__(self, facts: TargetFacts) -> None:
        self.facts = facts

    def start(self, directory: Path) -> Handle:
        """Raise UnavailableError: what was not measured then cannot be measured now."""
        message = f"a report has no processes to start in {directory}"
        raise UnavailableError(message, fix="use `envcheck run`")

    def promises(self, environment: Mapping[str, Any]) -> dict[str, str]:  # noqa: ARG002 (Target's)
        """Return none: a report holds its own."""
        return {}


def rejudge(run: Run, before: Iterable[OutcomeRow]) -> list[str]:
    """Judge the evidence of `before` into the run; return the checks that stay as they were, for want of a rule today.

    What was never measured, or whose processes broke, stays what it was: there is nothing to judge.
    """
    found = {f.id: f for f in run.chosen}
    unknown = []
    for old in before:
        if old.id in found:
            run.known[old.id] = _again(run, found[old.id], old)
        elif old.id != _INSISTED:
            run.known[old.id] = old
            unknown.append(old.id)
    insist_on_gpu(run)
    return unknown


def _again(run: Run, found: Found, old: OutcomeRow) -> OutcomeRow:
    outcome: Outcome | None = unmeasured(run, found)
    if outcome is None and old.ranks and not _broke(old):
        outcome = peers.told(found, judge.decide(found, run.view, old.ranks), old.details)
    if outcome is None:
        return old
    kept = {name: old.details[name] for name in ("survivors", *peers.KEPT) if name in old.details}
    return structs.replace(
        old,
        status=convert(outcome.status, Status),
        summary=outcome.summary,
        value=plain(outcome.value),
        unit=outcome.unit,
        limit=limit_row(outcome),
        remedy=outcome.remedy,
        details=plain({**outcome.details, **kept}),
    )


def _broke(old: OutcomeRow) -> bool:
    """Return whether it was the processes that came to an end, and no judge that could not tell."""
    if None in old.ranks:
        return old.status != PASS
    return old.status == ERROR and old.summary.startswith(f"rank {old.details.get('rank')} ")
