"""`envcheck report`."""

from __future__ import annotations

from pathlib import Path

import click

from envcheck.cli import _files
from envcheck.cli._duration import Finite

# A file that is not there is told by the loader, with what to do.
_REPORT = click.Path(path_type=Path, dir_okay=False)
_FORMS = ("junit", "prometheus", "html", "markdown")


@click.group(short_help="A report in other forms, or compared with another.")
def command() -> None:
    """Read what `envcheck run` wrote.

    \b
    envcheck report show envcheck-report.json
    envcheck report convert envcheck-report.json --to html --out report.html
    envcheck report schema > report.schema.json

    Exit 0: done, whatever the report says; 2: no report there, or wrong usage.
    """


@command.command()
@click.argument("file", type=_REPORT)
def show(file: Path) -> None:
    """Print a report as `envcheck run` printed it.

    \b
    envcheck report show envcheck-report.json
    """
    from envcheck.cli._strict import console
    from envcheck.reports.model import load
    from envcheck.reports.terminal import show as print_report
    from envcheck.reports.terminal import width

    print_report(load(file), console(width=width(), highlight=False))


@command.command()
@click.argument("file", type=_REPORT)
@click.option("--to", "form", type=click.Choice(_FORMS), required=True, help="The form.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="The file [default: print it].")
def convert(file: Path, form: str, out: Path | None) -> None:
    """Tell a report in another form.

    \b
    envcheck report convert envcheck-report.json --to junit --out junit.xml
    envcheck report convert r.json --to markdown >> "$GITHUB_STEP_SUMMARY"
    envcheck report convert r.json --to prometheus \\
        --out /var/lib/node_exporter/textfile/envcheck.prom

    A file is replaced whole or not at all, as scrapers need it. node_exporter's
    textfile collector reads files that end in .prom, and no other.
    """
    from envcheck.reports.forms import FORMS
    from envcheck.reports.model import load, put

    text = FORMS[form](load(file))
    _files.apart(FILE=file, out=out)
    if out is None:
        click.echo(text, nl=False)
    else:
        put(text.encode(), out)
        if form == "prometheus" and out.suffix != ".prom":
            click.echo(f"note: node_exporter reads no {out.name}: its files end in .prom", err=True)


@command.command()
@click.argument("before", type=_REPORT)
@click.argument("after", type=_REPORT)
@click.option("--threshold", type=Finite(0, 1), metavar="SHARE", help="Slower by less is the same [0.05].")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
@click.pass_context
def compare(ctx: click.Context, before: Path, after: Path, *, threshold: float | None, as_json: bool) -> None:
    """Say what changed between two runs, and what got slower.

    \b
    envcheck report compare last-week.json envcheck-report.json

    A GPU is the same one by its UUID. A speed is slower when the median over its
    curve fell by more than the threshold (5 % on GPUs, 30 % on a CPU), by more
    than 4 standard errors of that median, and by more than either run's own
    repeats are apart. Exit 0: nothing got worse; 1: something did; 3: the two
    have nothing in common.
    """
    from envcheck.reports.compare import compare as compared
    from envcheck.reports.compare import encode, lines
    from envcheck.reports.model import load

    found = compared(load(before), load(after), threshold)
    click.echo(encode(found) if as_json else "\n".join(lines(found)), nl=not as_json)
    ctx.exit(found.exit_code)


@command.command()
@click.argument("file", type=_REPORT)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="The file [default: print it].")
@click.option("--key", default="", metavar="TEXT", help="Same pseudonyms in every report of this key; keep it secret.")
def redact(file: Path, out: Path | None, key: str) -> None:
    """Take the names out of a report: hosts, users, UUIDs, serials, paths.

    \b
    envcheck report redact envcheck-report.json --out to-share.json
    ENVCHECK_REPORT_REDACT_KEY=... envcheck report redact envcheck-report.json

    Each name gets one pseudonym. Both reports are judged again: where any check
    would come to something else without its names, nothing is written.
    """
    from envcheck.reports.model import encode, load, put
    from envcheck.reports.redact import redact as redacted

    told = encode(redacted(load(file), key))
    if out is None:
        click.echo(told, nl=False)
    else:
        put(told, out)


@command.command()
def schema() -> None:
    """Print the JSON Schema of a report.

    \b
    envcheck report schema > report.schema.json
    """
    from envcheck.reports.model import json_schema

    click.echo(json_schema(), nl=False)
