"""`envcheck report`."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import click

from envcheck.cli.report_output import files as report_output_files
from envcheck.cli.shared.parameter_types import FiniteRange
from envcheck.cli.shared.typed_options import takes
from envcheck.reports.formats import registry

# The loader reports a missing file, with what to do.
_REPORT = click.Path(path_type=Path, dir_okay=False)
_output_option = click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="The file [default: print it]."
)


class ReportShowOptions(NamedTuple):
    """The options of `envcheck report show`."""

    file: Path


class ReportConvertOptions(NamedTuple):
    """The options of `envcheck report convert`."""

    file: Path
    format_name: str
    output: Path | None


class ReportCompareOptions(NamedTuple):
    """The options of `envcheck report compare`."""

    before: Path
    after: Path
    threshold: float | None
    as_json: bool


class ReportRedactOptions(NamedTuple):
    """The options of `envcheck report redact`."""

    file: Path
    output: Path | None
    key: str


@click.group(short_help="A report in other formats, or compared with another.")
def command() -> None:
    """Read what `envcheck run` wrote.

    \b
    envcheck report show envcheck-report.json
    envcheck report convert envcheck-report.json --format html -o report.html

    Exit 0: done, whatever the report's verdict; 2: FILE is not a report, or wrong usage.
    """


@command.command()
@click.argument("file", type=_REPORT)
@takes(ReportShowOptions)
def show(options: ReportShowOptions) -> None:
    """Print a report as `envcheck run` printed it.

    \b
    envcheck report show envcheck-report.json
    """
    from envcheck.cli.shared.streams import console
    from envcheck.reports.model import load
    from envcheck.reports.terminal import show as print_report
    from envcheck.reports.terminal import width

    print_report(load(options.file), console(width=width(), highlight=False))


@command.command()
@click.argument("file", type=_REPORT)
@click.option("--format", "format_name", type=click.Choice(registry.names()), required=True, help="The format.")
@_output_option
@takes(ReportConvertOptions)
def convert(options: ReportConvertOptions) -> None:
    """Write a report in another format.

    \b
    envcheck report convert envcheck-report.json --format junit -o junit.xml
    envcheck report convert r.json --format markdown >> "$GITHUB_STEP_SUMMARY"
    envcheck report convert r.json --format prometheus \\
        -o /var/lib/node_exporter/textfile/envcheck.prom

    A file is replaced atomically, because scrapers may read it at any time. node_exporter's
    textfile collector reads files that end in .prom, and no other.
    """
    from envcheck import safe_files
    from envcheck.reports.model import load

    out, written_as = options.output, registry.named(options.format_name)
    text = written_as.render(load(options.file))
    report_output_files.apart(FILE=options.file, output=out)
    if out is None:
        click.echo(text, nl=False)
    else:
        safe_files.replace(out, text.encode())
        if written_as.other_suffix and out.suffix != written_as.suffix:
            click.echo(f"note: {written_as.other_suffix}, and not {out.name}", err=True)


@command.command()
@click.argument("before", type=_REPORT)
@click.argument("after", type=_REPORT)
@click.option(
    "--threshold", type=FiniteRange(0, 1), metavar="SHARE", help="Smaller changes of a speed do not count [0.05]."
)
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
@click.pass_context
@takes(ReportCompareOptions)
def compare(options: ReportCompareOptions, ctx: click.Context) -> None:
    """Say what changed between two runs, and what got slower.

    \b
    envcheck report compare last-week.json envcheck-report.json

    GPUs are matched by their UUIDs. A speed is slower when the median over its
    curve fell by more than the threshold (5 % on GPUs, 30 % on a CPU), by more
    than 4 standard errors of that median, and by more than the repeats of either run differ. Exit 0: nothing got
    worse; 1: something did; 3: the two have nothing in common.
    """
    from envcheck.reports.compare import compare as compared
    from envcheck.reports.compare import encode, lines
    from envcheck.reports.model import load

    comparison = compared(load(options.before), load(options.after), options.threshold)
    click.echo(encode(comparison) if options.as_json else "\n".join(lines(comparison)), nl=not options.as_json)
    ctx.exit(comparison.exit_code)


@command.command()
@click.argument("file", type=_REPORT)
@_output_option
@click.option("--key", default="", metavar="TEXT", help="Same pseudonyms in every report of this key; keep it secret.")
@takes(ReportRedactOptions)
def redact(options: ReportRedactOptions) -> None:
    """Replace the names in a report: hosts, users, UUIDs, paths.

    \b
    envcheck report redact envcheck-report.json -o to-share.json
    ENVCHECK_REPORT_REDACT_KEY=... envcheck report redact envcheck-report.json

    Each name gets one pseudonym. Both reports are judged again; if a status
    differs, nothing is written.
    """
    from envcheck import safe_files
    from envcheck.cli.shared.messages import names
    from envcheck.reports.model import encode, load
    from envcheck.reports.redact import redact as redacted

    names(options.key)

    report_output_files.apart(FILE=options.file, output=options.output)
    report = encode(redacted(load(options.file), options.key))
    if options.output is None:
        click.echo(report, nl=False)
    else:
        safe_files.replace(options.output, report)
