"""`envcheck fleet report` and `plan`: the reports of many nodes as one answer; the fewest cells for all nodes."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import click

from envcheck import safe_files
from envcheck.cli import Settings
from envcheck.cli.options import FILE, Argument, Duration, Option, command_with
from envcheck.cli.report_output import apart
from envcheck.errors import ConfigError
from envcheck.fleet.cover import of_places, plan
from envcheck.fleet.database import history, history_lines, ingest, opened
from envcheck.fleet.hostlist import expected_nodes, file_of
from envcheck.fleet.model import encode
from envcheck.fleet.page import page
from envcheck.fleet.summary import FleetQuestion, summarize
from envcheck.fleet.terminal import lines, plan_lines, wrapped
from envcheck.matrix.file.load import load
from envcheck.matrix.resolver.query import Query, normalized


@dataclass(frozen=True, kw_only=True)
class FleetReportOptions:
    places: Annotated[tuple[Path, ...], Argument(metavar="DIR|FILE...")] = ()
    expect: Annotated[
        str | None, Option("The nodes that must have a report: n[1-64], or a file of names.", metavar="FILE|NODELIST")
    ] = None
    max_age: Annotated[float, Option("Older reports are stale.", type=Duration())] = 86400.0
    db: Annotated[
        Path | None, Option("Database of the reports read so far; only new files are read again.", type=FILE)
    ] = None
    html: Annotated[Path | None, Option("Write one page: nodes and checks, outliers, drift.", type=FILE)] = None
    history: Annotated[
        str | None,
        Option("Print how often this one failed, and why; a UUID's beginning is enough.", metavar="NODE|GPU-UUID"),
    ] = None
    strict: Annotated[bool, Option("Drift and outliers count as failures, and leave `use now`.")] = False
    as_json: Annotated[bool, Option("--json", "Print envcheck/fleet/1, or envcheck/fleet-history/1.")] = False


@command_with(FleetReportOptions, name="report")
def report(options: FleetReportOptions, settings: Settings) -> int:  # noqa: ARG001 (all commands take them)
    """Say which nodes failed, are missing, stale, undetermined or different, and which to use now.

    Each DIR is searched for *.json, as `envcheck run --output DIR/` writes them. The newest report of a node counts. A
    node without a sound one is undetermined, never passed.

    \b
    envcheck fleet report reports/
    envcheck fleet report reports/ --expect 'n[1-1000]' --db fleet.db \\
        --html fleet.html
    envcheck fleet report --db fleet.db --history n17

    Exit 0: every node passed, or the history is printed; 1: a node failed; 2: wrong usage, or nothing is known of the
    node; 3: a node is missing, stale or undetermined.
    """
    _refuse_shared_files(options)
    if options.history is not None:
        return _print_history(options, options.history)
    expected = expected_nodes(options.expect) if options.expect is not None else []
    question = FleetQuestion(time.time(), expected, options.max_age, options.strict)
    files: dict[Path, str] = {}
    with opened(options.db) as database:
        answer = summarize(database, ingest(database, options.places), question)
        if options.html is not None:
            files[options.html] = page(database, answer)
    for path, content in files.items():
        safe_files.replace(path, content.encode())
    if options.as_json:
        click.echo(encode(answer.report), nl=False)
    else:
        click.echo("\n".join(lines(answer.report)))
    return answer.report.verdict.exit_code


def _print_history(options: FleetReportOptions, who: str) -> int:
    with opened(options.db) as database:
        ingest(database, options.places)
        past = history(database, who)
    if options.as_json:
        click.echo(encode(past), nl=False)
    for line in () if options.as_json else history_lines(past):
        click.echo("\n".join(wrapped(line, "")))
    return 0


def _refuse_shared_files(options: FleetReportOptions) -> None:
    """Raise ConfigError where nothing is read, or a file that is written is another one, or read as a report."""
    if not options.places and not (options.history and options.db):
        message = "no DIR or FILE of reports is named"
        raise ConfigError(message, fix="name the directory that `envcheck run --output DIR/` wrote")
    if options.db is not None and not options.places and not options.db.exists():
        message = f"{options.db}: no such database"
        raise ConfigError(message, fix="name the one that `envcheck fleet report DIR --db FILE` wrote")
    outputs = {"db": options.db, "html": options.html}
    apart(**outputs, expect=file_of(options.expect) if options.expect else None)
    for name, output in outputs.items():
        if output is not None and any(_would_be_read(output, place) for place in options.places):
            message = f"--{name} {output} is one of the reports"
            raise ConfigError(message, fix="give it a file of its own, which does not end in .json")


def _would_be_read(output: Path, place: Path) -> bool:
    written, read = Path(os.path.realpath(output)), Path(os.path.realpath(place))
    return (written == read and output.is_file()) or (written.suffix == ".json" and read in written.parents)


@dataclass(frozen=True, kw_only=True)
class FleetPlanOptions:
    places: Annotated[tuple[Path, ...], Argument(required=True, metavar="DIR|FILE|CSV...")] = ()
    torch: Annotated[str | None, Option('A release or a requirement: 2.8, 2.8.0, ">=2.6,<2.9".', metavar="REQ")] = None
    variant: Annotated[str | None, Option("The wheel's CUDA as its name says it, e.g. cu128.", metavar="cuNNN|cpu")] = (
        None
    )
    cuda: Annotated[str | None, Option("The same by CUDA version, e.g. 12.8.", metavar="X.Y")] = None
    python: Annotated[str | None, Option("Python version, e.g. 3.12 or 3.13t.", metavar="X.Y")] = None
    as_json: Annotated[bool, Option("--json", "Print envcheck/fleet-plan/1.")] = False


@command_with(FleetPlanOptions, name="plan")
def plan_(options: FleetPlanOptions, settings: Settings) -> int:
    """Say which published cells cover all nodes, with the fewest images, and which nodes no cell covers.

    Nodes are read from reports, or from a CSV file with the header node,gpu,driver[,arch]; a node may be a host list.
    The plan has the fewest cells; among equally small plans it is the one whose oldest torch is newest.

    \b
    envcheck fleet plan inventory.csv --torch '>=2.6'
    envcheck fleet plan reports/ --torch '>=2.6' --python 3.12

    Exit 0: every node has a cell; 1: a node has none; 2: wrong usage, or an inventory that cannot be read.
    """
    wish = normalized(Query(torch=options.torch, variant=options.variant, cuda=options.cuda, python=options.python))
    planned = plan(load(settings.matrix), of_places(options.places), wish)
    if options.as_json:
        click.echo(encode(planned), nl=False)
    else:
        click.echo("\n".join(plan_lines(planned)))
    return 1 if planned.uncovered else 0
