"""An earlier report that a run is held against."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from envcheck.reports.model import RunReport


def read(path: Path | None) -> RunReport | None:
    """Read what the run is to be held against before anything is measured, or this report is written over it."""
    from envcheck.reports.model import load

    return load(path) if path else None


def held_against(
    earlier: RunReport, report: RunReport, said: Callable[[str], str], *, as_json: bool, quiet: bool
) -> int:
    """Print what changed since the baseline; return 1 where anything got worse, 3 where nothing could be compared."""
    from envcheck.reports.comparison.compare import compare, lines

    found = compare(earlier, report)
    told = [said(line) for line in lines(found)]
    click.echo("\n".join(told[-1:] if quiet else ["", "Since the baseline", *told]), err=as_json)
    return 1 if found.regressions else report.verdict.exit_code or found.exit_code
