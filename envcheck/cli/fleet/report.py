"""`envcheck fleet report` and `plan`: the reports of many nodes as one answer; the fewest cells for all nodes."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import click

from envcheck import safe_files
from envcheck.cli import Settings
from envcheck.cli.options import FILE, Argument, Duration, Option, command_with
from envcheck.errors import refuse
from envcheck.fleet.cover import of_places, plan
from envcheck.fleet.files import history_lines, read_files
from envcheck.fleet.hostlist import unfold
from envcheck.fleet.shown import lines, page, plan_lines, wrapped
from envcheck.fleet.summary import FleetQuestion, encode, summarize
from envcheck.matrix.file.load import load
from envcheck.matrix.resolver.query import Query, normalized


@dataclass(frozen=True, kw_only=True)
class FleetReportOptions:
    places: Annotated[tuple[Path, ...], Argument(required=True, metavar="DIR|FILE...")] = ()
    expect: Annotated[
        str | None, Option("The nodes that must have a report, as n[1-64] or names with spaces.", metavar="NODELIST")
    ] = None
    max_age: Annotated[float, Option("Older reports are stale.", type=Duration())] = 86400.0
    html: Annotated[Path | None, Option("Write one page: nodes and checks, outliers, drift.", type=FILE)] = None
    history: Annotated[
        str | None,
        Option("Print how often this one failed, and why; a UUID's beginning is enough.", metavar="NODE|GPU-UUID"),
    ] = None
    strict: Annotated[bool, Option("Drift and outliers count as failures, and leave `use now`.")] = False
    as_json: Annotated[bool, Option("--json", "Print envcheck/fleet/1.")] = False


@command_with(FleetReportOptions, name="report")
def report(options: FleetReportOptions, settings: Settings) -> int:  # noqa: ARG001 (all commands take them)
    """Say which nodes failed, are missing, stale, undetermined or different, and which to use now.

    Each DIR is searched for *.json, as `envcheck run --output DIR/` writes them. The newest report of a node counts. A
    node without a sound one is undetermined, never passed.

    \b
    envcheck fleet report reports/
    envcheck fleet report reports/ --expect 'n[1-1000]' --html fleet.html
    envcheck fleet report reports/ --history n17

    Exit 0: every node passed, or the history is printed; 1: a node failed; 2: wrong usage, or nothing is known of the
    node; 3: a node is missing, stale or undetermined.
    """
    if options.html is not None and (options.html.suffix == ".json" or options.html in options.places):
        refuse(f"--html {options.html} would be read as a report", "give it a name that does not end in .json")
    expected = [] if options.expect is None else unfold(options.expect)
    files = read_files(options.places)
    if options.history is not None:
        shown = [part for line in history_lines(files, options.history) for part in wrapped(line, "")]
        click.echo("\n".join(shown))
        return 0
    answer = summarize(files, FleetQuestion(time.time(), expected, options.max_age, options.strict, options.places))
    if options.html is not None:
        safe_files.replace(options.html, page(answer).encode())
    if options.as_json:
        click.echo(encode(answer.report), nl=False)
    else:
        click.echo("\n".join(lines(answer.report)))
    return answer.report.verdict.exit_code


@dataclass(frozen=True, kw_only=True)
class FleetPlanOptions:
    places: Annotated[tuple[Path, ...], Argument(required=True, metavar="DIR|FILE|CSV...")] = ()
    torch: Annotated[str | None, Option('A release or a requirement: 2.8, 2.8.0, ">=2.6,<2.9".', metavar="REQ")] = None
    variant: Annotated[str | None, Option("The wheel's CUDA as in its name: cu128.", metavar="cuNNN|cpu")] = None
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
