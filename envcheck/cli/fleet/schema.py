"""`envcheck fleet schema`: the JSON Schemas of the documents for programs."""

from __future__ import annotations

from typing import Final, NamedTuple

import click

from envcheck.cli.shared.typed_options import takes

_DOCUMENTS: Final = ("report", "plan", "history")


class FleetSchemaOptions(NamedTuple):
    """The options of `envcheck fleet schema`."""

    document: str


@click.command("schema")
@click.argument("document", type=click.Choice(_DOCUMENTS), default="report")
@takes(FleetSchemaOptions)
def command(options: FleetSchemaOptions) -> None:
    """Print the JSON Schema of what `envcheck fleet DOCUMENT --json` prints.

    \b
    envcheck fleet schema > fleet.schema.json
    """
    import msgspec

    from envcheck.fleet.cover import FleetPlan
    from envcheck.fleet.history import FleetHistory
    from envcheck.fleet.model import FleetReport, json_schema

    documents: dict[str, type[msgspec.Struct]] = {"report": FleetReport, "plan": FleetPlan, "history": FleetHistory}
    click.echo(json_schema(documents[options.document]), nl=False)
