"""A run of the checks that fit into a budget, and its report beside the verdict."""

from __future__ import annotations

from pathlib import Path

from envcheck.node.collect import collect
from envcheck.reports.model import RunReport, report_of, write
from envcheck.runner.container import shown_gpus
from envcheck.runner.execute import validate
from envcheck.runner.local_python import Target
from envcheck.runner.planning import discover, most_telling_first, plan, select
from envcheck.runner.state import Run, RunPlan


class _Silent:
    """A watcher that shows nothing: a prolog has no reader."""

    def running(self, check: str) -> None:
        """Show nothing."""

    def learned(self, run: Run) -> None:
        """Write nothing; the report is written at the end."""


def run_checks(target: Target, level: str, budget: float, *, require_gpu: bool) -> RunReport:
    """Run the checks of a level that fit into `budget` seconds, the most telling first, and return the report."""
    chosen = most_telling_first(select(discover(), level))
    planned = plan(chosen, level=level, nproc=2, gpus=shown_gpus(), require_gpu=require_gpu, budget=budget)
    run = Run(RunPlan(plan=planned, chosen=chosen, target=target, stretch=True))
    validate(run, collect, _Silent())
    return report_of(run)


def keep_report(report: RunReport, verdict_file: Path) -> str:
    """Write a report beside its verdict and return its path; "" where there is no room for it."""
    path = verdict_file.with_name(verdict_file.name.replace("verdict-", "report-"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(report, path)
    except OSError:
        return ""
    return str(path)
