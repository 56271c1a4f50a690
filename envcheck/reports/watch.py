"""Keeps a run's report on disk as it grows, so that a kill loses only what was not known yet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from envcheck.reports.model import RunReport, report_of, write
from envcheck.reports.terminal import Progress
from envcheck.runner.drive import Run


class Keeper:
    """A run's watcher: shows its progress, and writes the report after each check to `path` (None: nowhere).

    `told_as` is what becomes of the report before it is written: nothing, or a redaction.
    """

    def __init__(
        self,
        run: Run,
        path: Path | None,
        progress: Progress,
        told_as: Callable[[RunReport], RunReport] = lambda report: report,
    ) -> None:
        self._run, self._path, self._progress, self._told_as = run, path, progress, told_as
        self._written: tuple[bool, int, int, str] | None = None

    def running(self, check: str) -> None:
        """Show which check runs."""
        self._progress.running(check, self._run)

    def learned(self, run: Run) -> None:
        """Write the report when it says more than the last one."""
        attempts = sum(len(o.attempts) for rows in (run.known, run.current) for o in rows.values())
        known = (bool(run.environment), run.number, attempts, run.ended)
        if self._path is not None and known != self._written:
            write(self._told_as(report_of(run)), self._path)
            self._written = known
