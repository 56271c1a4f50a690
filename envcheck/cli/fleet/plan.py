"""`envcheck fleet plan`: the fewest published cells for all nodes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import click

from envcheck.cli import Settings
from envcheck.cli.options import Argument, Option, command_with
from envcheck.fleet.cover import of_places, plan
from envcheck.fleet.model import encode
from envcheck.fleet.terminal import plan_lines
from envcheck.matrix.file.load import load
from envcheck.matrix.resolver.query import Query, normalized


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
def command(options: FleetPlanOptions, settings: Settings) -> int:
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
