"""Keeps a run's report on disk as it grows, so that a kill loses only what was not known yet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from envcheck.reports.model import RunReport, report_of, write
from envcheck.reports.terminal import Progress
from envcheck.runner.state import Run


class LiveReport:
    """A run's watcher: shows its progress, and writes the report after each check to `path` (None: nowhere).

    `told_as` is what becomes of the report before it is written: nothing, or a redaction. A disk that is full ends no
    run: it is tried again with the next check, and `failed` is why the last try came to nothing.
    """

    def __init__(
        self,
        run: Run,
        path: Path | None,
        progress: Progress,
        told_as: Callable[[RunReport], RunReport] = lambda report: report,
    ) -> None:
        self._run, self._path, self._progress, self._told_as = run, path, progress, told_as
        self.failed: OSError | None = None
        self._written: tuple[bool, int, int, str] | None = None
        # A pipe or a device takes one report, the last.
        self._once = path is not None and path.exists() and not path.is_file()

    def running(self, check: str) -> None:
        """Show which check runs."""
        self._progress.running(check, self._run)

    def learned(self, run: Run) -> None:
        """Write the report when it says more than the last one."""
        attempts = sum(len(o.attempts) for rows in (run.known, run.current) for o in rows.values())
        state = (bool(run.environment), run.number, attempts, run.ended)
        if self._path is None or state == self._written:
            return
        if self._once and not run.ended:
            return
        try:
            write(self._told_as(report_of(run)), self._path)
        except OSError as error:
            self.failed = error
            return
        self.failed, self._written = None, state
