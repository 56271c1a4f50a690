"""The earlier report with which a run is compared."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from envcheck.reports.model import RunReport


def read(path: Path | None) -> RunReport | None:
    """Read the report to compare with before anything is measured, or this report is written over it."""
    from envcheck.reports.model import load

    return load(path) if path else None


def held_against(
    earlier: RunReport, report: RunReport, printable: Callable[[str], str], *, as_json: bool, quiet: bool
) -> int:
    """Print what changed since the baseline; return 1 where anything got worse, 3 where nothing could be compared."""
    from envcheck.reports.compare import compare, lines

    comparison = compare(earlier, report)
    printed = [printable(line) for line in lines(comparison)]
    click.echo("\n".join(printed[-1:] if quiet else ["", "Since the baseline", *printed]), err=as_json)
    return 1 if comparison.regressions else report.verdict.exit_code or comparison.exit_code
