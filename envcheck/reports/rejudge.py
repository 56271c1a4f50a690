"""A report judged again: today's rules on its own evidence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import structs

from envcheck import __version__
from envcheck.checks import SKIP
from envcheck.node.signal_types import sound_facts
from envcheck.reports.model import RunReport
from envcheck.runner.planning.discover import discover
from envcheck.runner.rejudge import EndedRun
from envcheck.runner.rejudge import rejudge as judge_again
from envcheck.runner.state import Run


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
    run = Run(report.plan, chosen, EndedRun(report.target), report.started, report.ended, matrix=matrix)
    run.snapshot, run.environment, run.promises = report.snapshot, sound_facts(report.environment), report.promises
    unknown = judge_again(run, report.outcomes)
    before = {outcome.id: outcome.status for outcome in report.outcomes}
    new = structs.replace(report, outcomes=run.ordered, verdict=run.verdict, judged_by=__version__)
    changed = [(o.id, str(before.get(o.id, "nothing")), o.status) for o in new.outcomes if o.status != before.get(o.id)]
    return RejudgedReport(new, changed, unknown)
