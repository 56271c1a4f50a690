"""`envcheck fleet plan`: the fewest published cells for all nodes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from envcheck.cli.shared.typed_options import takes

if TYPE_CHECKING:
    from envcheck.cli import Settings


class FleetPlanOptions(NamedTuple):
    """The options of `envcheck fleet plan`."""

    places: tuple[Path, ...]
    torch: str | None
    variant: str | None
    cuda: str | None
    python: str | None
    as_json: bool


@click.command("plan")
@click.argument("places", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="DIR|FILE|CSV...")
@click.option("--torch", metavar="REQ", help='A release or a requirement: 2.8, 2.8.0, ">=2.6,<2.9".')
@click.option("--variant", metavar="cuNNN|cpu", help="The wheel's CUDA as its name says it, e.g. cu128.")
@click.option("--cuda", metavar="X.Y", help="The same by CUDA version, e.g. 12.8.")
@click.option("--python", metavar="X.Y", help="Python version, e.g. 3.12 or 3.13t.")
@click.option("--json", "as_json", is_flag=True, help="Print envcheck/fleet-plan/1.")
@click.pass_obj
@takes(FleetPlanOptions)
def command(options: FleetPlanOptions, settings: Settings) -> None:
    """Say which published cells cover all nodes, with the fewest images, and what each driver upgrade would add.

    Nodes are read from reports, or from a CSV file with the header node,gpu,driver[,arch][,count]; a node may be a host
    list. The plan has the fewest cells; among equally small plans it is the one whose oldest torch is newest.

    \b
    envcheck fleet plan inventory.csv --torch '>=2.6'
    envcheck fleet plan reports/ --torch '>=2.6' --python 3.12

    Exit 0: every node has a cell; 1: a node has none; 2: wrong usage, or an inventory that cannot be read.
    """
    import msgspec

    from envcheck.fleet.cover import of_places, plan
    from envcheck.fleet.terminal import plan_lines
    from envcheck.matrix.file.load import load
    from envcheck.matrix.resolver.query import Query, normalized

    wish = normalized(Query(torch=options.torch, variant=options.variant, cuda=options.cuda, python=options.python))
    planned = plan(load(settings.matrix), of_places(options.places), wish)
    if options.as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(planned), indent=1))
    else:
        click.echo("\n".join(plan_lines(planned)))
    sys.exit(1 if planned.uncovered else 0)
