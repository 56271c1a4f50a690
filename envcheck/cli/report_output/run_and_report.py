"""Run the planned checks, write the report in each of its formats, and print it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from envcheck.cli.interrupts import status_of
from envcheck.cli.report_output import baseline as report_output_baseline
from envcheck.cli.report_output import files as report_output_files
from envcheck.errors import UnavailableError

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from envcheck.cli.report_output.files import Destinations
    from envcheck.reports.model import RunReport
    from envcheck.reports.terminal import LiveReport
    from envcheck.runner.state import Run


def run_and_report(
    run: Run,
    files: Destinations,
    console: Console,
    earlier: RunReport | None,
    *,
    as_json: bool,
    quiet: bool,
) -> int:
    """Measure and judge, write the report, print it, and return the exit code."""
    from envcheck.reports.model import report_of

    keeper, interrupted = _measured(run, files)
    report = report_of(run)
    kept = files.redacted(report)
    # Nothing is printed of how it ended before all of it is written.
    failed, option = (keeper.failed, "--output") if keeper.failed else _unwritten(kept, files)
    if failed is not None:
        _say_unwritten(failed, option, files)
        kept = _not_passed(kept)
    _print(kept, files, console, as_json=as_json, quiet=quiet, written=failed is None)
    if interrupted is not None:
        if files.report is not None and not quiet:
            click.echo("envcheck: interrupted; run the same command with --resume to continue", err=True)
        return status_of(interrupted)
    if failed is not None or earlier is None:
        return kept.verdict.exit_code
    return report_output_baseline.held_against(earlier, report, files.redacted_line, as_json=as_json, quiet=quiet)


def _measured(run: Run, files: Destinations) -> tuple[LiveReport, KeyboardInterrupt | None]:
    """Run the checks; return what kept the report meanwhile, and the Ctrl-C or SIGTERM that ended it."""
    from envcheck.node.collect import collect
    from envcheck.reports import terminal
    from envcheck.reports.terminal import LiveReport
    from envcheck.runner.execute import validate

    with terminal.Progress(run.asked.plan) as progress:
        keeper = LiveReport(run, files.report, progress, files.redacted)
        try:
            validate(run, collect, keeper)
        except KeyboardInterrupt as how:
            return keeper, how
    return keeper, None


def _print(
    report: RunReport, files: Destinations, console: Console, *, as_json: bool, quiet: bool, written: bool
) -> None:
    from envcheck.reports import terminal
    from envcheck.reports.model import encode

    if as_json:
        click.echo(encode(report), nl=False)
    elif quiet:
        click.echo(report.verdict.sentence)
    else:
        lines = report_output_files.written(files) if written else []
        terminal.show(report, console, [files.redacted_line(line) for line in lines])


def _unwritten(report: RunReport, files: Destinations) -> tuple[OSError | None, str]:
    """Write the report in its other formats; return why one of them could not be written, and its option."""
    failed = ((error, name) for name, path in files.formats.items() if (error := _tried(report, name, path)))
    error, name = next(failed, (None, ""))
    return error, report_output_files.OPTIONS.get(name, "")


def _tried(report: RunReport, name: str, path: Path) -> OSError | None:
    try:
        report_output_files.write(report, {name: path})
    except OSError as error:
        return error
    return None


def _say_unwritten(error: OSError, option: str, files: Destinations) -> None:
    from envcheck.runner.worker.process_limits import explained

    why = explained((error.strerror or str(error)).replace("No space left", "no space left"))
    fix = f"give {option} another file" if option.startswith("--") else "send it elsewhere"
    click.echo(files.redacted_line(f"envcheck: {error.filename or option}: {why}; free space, or {fix}"), err=True)


def _not_passed(report: RunReport) -> RunReport:
    """Return the report of a run that passed, and of which no file is there to show it: undetermined."""
    from msgspec import structs

    if report.verdict.exit_code:
        return report
    sentence = "UNDETERMINED: every check that ran is sound, but the report could not be written"
    code = UnavailableError.exit_code
    return structs.replace(
        report, verdict=structs.replace(report.verdict, status="error", exit_code=code, sentence=sentence)
    )
