"""`envcheck fleet report`: the reports of many nodes as one answer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import click

from envcheck.cli.shared.typed_options import takes


class FleetReportOptions(NamedTuple):
    """The options of `envcheck fleet report`."""

    places: tuple[Path, ...]


@click.command("report")
@click.argument("places", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="DIR|FILE...")
@takes(FleetReportOptions)
def command(options: FleetReportOptions) -> None:
    """Say which nodes failed or are undetermined, and which to use now.

    \b
    envcheck fleet report reports/

    Exit 0: every node passed; 1: a node failed; 2: wrong usage; 3: a node is undetermined.
    """
    from envcheck.errors import ConfigError
    from envcheck.fleet.hostlist import fold, is_name
    from envcheck.fleet.reading.files import find
    from envcheck.fleet.reading.one_report import OtherDocument, node_of_file, read
    from envcheck.printable import printable
    from envcheck.safe_files import read_regular

    states: dict[str, set[str]] = {"pass": set(), "fail": set(), "error": set()}
    for file in find(options.places):
        node, status, why = node_of_file(Path(file.path).stem), "error", file.problem
        try:
            reading = None if file.problem else read(read_regular(Path(file.path), 1 << 30), node)
        except (ConfigError, OSError) as error:
            why, reading = str(error), None
        if isinstance(reading, OtherDocument):
            continue
        if reading is not None:
            node, status, why = reading.node, reading.status, reading.why
        states[status].add(node)
        if why:
            click.echo(printable(f"{status}: {node}: {why}"))
    good = fold(filter(is_name, states["pass"] - states["fail"] - states["error"]))
    click.echo(f"use now: {good or 'no node'}")
    sys.exit(1 if states["fail"] else 3 if states["error"] or not good else 0)
