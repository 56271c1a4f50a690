"""`envcheck fleet report`: the reports of many nodes as one answer."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from envcheck.cli.shared.parameter_types import Duration
from envcheck.cli.shared.typed_options import takes

if TYPE_CHECKING:
    from envcheck.fleet.summary import FleetQuestion

_AXES: Final = ("gpu", "cell", "driver")
_FILE: Final = click.Path(path_type=Path, dir_okay=False)


class Axes(click.ParamType[tuple[str, ...]]):
    """What makes nodes of one kind: gpu, cell and driver, or some of them, between commas."""

    name = "gpu,cell,driver"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Return the axes; anything else is a usage error."""
        axes = tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else tuple(value)
        if not axes or not set(axes) <= set(_AXES):
            self.fail(f"{value!r} is not a list of {', '.join(_AXES)}", param, ctx)
        return axes


class FleetReportOptions(NamedTuple):
    """The options of `envcheck fleet report`."""

    places: tuple[Path, ...]
    expect: str | None
    by: tuple[str, ...]
    max_age: float
    db: Path | None
    html: Path | None
    prometheus: Path | None
    strict: bool
    as_json: bool


@click.command("report")
@click.argument("places", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="DIR|FILE...")
@click.option(
    "--expect", metavar="FILE|NODELIST", help="The nodes that must have a report: n[1-64], or a file of names."
)
@click.option("--by", type=Axes(), default="gpu,cell,driver", show_default=True, help="What defines a kind of node.")
@click.option("--max-age", type=Duration(), default="24h", show_default=True, help="Older reports are stale.")
@click.option("--db", type=_FILE, help="Database of the reports read so far; only new files are read again.")
@click.option("--html", type=_FILE, help="Write one page: nodes and checks, curves, drift.")
@click.option(
    "--prometheus", type=_FILE, metavar="FILE.prom", help="Write metrics for node_exporter's textfile collector."
)
@click.option("--strict", is_flag=True, help="Drift and outliers count as failures, and leave `use now`.")
@click.option("--json", "as_json", is_flag=True, help="Print envcheck/fleet/1.")
@takes(FleetReportOptions)
def command(options: FleetReportOptions) -> None:
    """Say which nodes failed, are missing, stale, undetermined or different, and which to use now.

    Each DIR is searched for *.json, as `envcheck run --output DIR/` writes them. The newest report of a node counts. A
    node without a sound one is undetermined, never passed.

    \b
    envcheck fleet report reports/
    envcheck fleet report reports/ --expect 'n[1-1000]' --db fleet.db \\
        --html fleet.html

    Exit 0: every node passed; 1: a node failed; 2: wrong usage; 3: a node is missing, stale or undetermined.
    """
    from envcheck import safe_files
    from envcheck.fleet.database import ingest, opened
    from envcheck.fleet.model import encode
    from envcheck.fleet.page import page
    from envcheck.fleet.prometheus import prometheus
    from envcheck.fleet.summary import summarize
    from envcheck.fleet.terminal import lines

    _refuse_shared_files(options)
    question, files = _question(options), dict[Path, str]()
    with opened(options.db) as database:
        answer = summarize(database, ingest(database, options.places), question)
        if options.html is not None:
            files[options.html] = page(database, answer)
        if options.prometheus is not None:
            files[options.prometheus] = prometheus(answer.report)
    for path, content in files.items():
        safe_files.replace(path, content.encode())
    if options.as_json:
        click.echo(encode(answer.report), nl=False)
    else:
        click.echo("\n".join(lines(answer.report)))
    sys.exit(answer.report.verdict.exit_code)


def _refuse_shared_files(options: FleetReportOptions) -> None:
    """Raise ConfigError where a file that is written is another one of this command, or would be read as a report."""
    from envcheck.cli.report_output.files import apart
    from envcheck.errors import ConfigError
    from envcheck.fleet.hostlist import file_of

    outputs = {"db": options.db, "html": options.html, "prometheus": options.prometheus}
    apart(**outputs, expect=file_of(options.expect) if options.expect else None)
    for name, output in outputs.items():
        if output is not None and any(_would_be_read(output, place) for place in options.places):
            message = f"--{name} {output} is one of the reports"
            raise ConfigError(message, fix="give it a file of its own, which does not end in .json")


def _would_be_read(output: Path, place: Path) -> bool:
    written, read = Path(os.path.realpath(output)), Path(os.path.realpath(place))
    return (written == read and output.is_file()) or (written.suffix == ".json" and read in written.parents)


def _question(options: FleetReportOptions) -> FleetQuestion:
    from envcheck.fleet.hostlist import expected_nodes
    from envcheck.fleet.summary import FleetQuestion

    expected = expected_nodes(options.expect) if options.expect is not None else []
    return FleetQuestion(time.time(), expected, options.by, options.max_age, options.strict)
