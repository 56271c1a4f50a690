"""`envcheck judge`."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import click

from envcheck.cli.shared.typed_options import takes


class JudgeOptions(NamedTuple):
    """The options of `envcheck judge`."""

    file: Path
    checks: Path | None
    output: Path | None
    as_json: bool


@click.command(short_help="Apply today's rules to an old report.")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--checks",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Directory with your own checks (node/*.py, env/*.py).",
)
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write the new report here.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.pass_context
@takes(JudgeOptions)
def command(options: JudgeOptions, ctx: click.Context) -> None:
    """Apply today's rules and limits to the measurements of an old report.

    \b
    envcheck judge last-month.json
    envcheck --matrix matrix.yaml judge last-month.json --output again.json

    Nothing is measured. A check that broke, or was not run, stays as it was.
    The exit code is that of `envcheck run`.
    """
    from envcheck.cli.report_output import files as report_output_files
    from envcheck.cli.shared.streams import console
    from envcheck.matrix.file.load import load as load_matrix
    from envcheck.printable import printable
    from envcheck.reports.model import encode, load, write
    from envcheck.reports.rejudge import rejudge
    from envcheck.reports.terminal import show, width

    report_output_files.apart(FILE=options.file, output=options.output)
    rejudged = rejudge(load(options.file), load_matrix(ctx.obj.matrix) if ctx.obj.matrix else None, options.checks)
    if options.output is not None:
        write(rejudged.report, options.output)
    if options.as_json:
        click.echo(encode(rejudged.report), nl=False)
    elif ctx.obj.quiet:
        click.echo(printable(rejudged.report.verdict.sentence))
    else:
        for identity, before, after in rejudged.changed:
            click.echo(printable(f"{identity}: {before} then, {after} now"))
        if rejudged.unknown:
            click.echo(printable(f"unchanged, because no check has this name today: {', '.join(rejudged.unknown)}"))
        show(rejudged.report, console(width=width(), highlight=False))
    ctx.exit(rejudged.report.verdict.exit_code)
