"""`envcheck schema`: the JSON Schema of what a file or a command's JSON holds."""

import importlib
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import click
import msgspec

from envcheck.cli import Settings
from envcheck.cli.options import Argument, command_with

_STRUCTS: Final = {
    "matrix": "envcheck.matrix.facts.model:Matrix",
    "extensions": "envcheck.matrix.extensions.file:Extensions",
    "report": "envcheck.reports.model:RunReport",
    "fleet": "envcheck.fleet.summary:FleetReport",
    "fleet-plan": "envcheck.fleet.cover:FleetPlan",
}


@dataclass(frozen=True, kw_only=True)
class SchemaOptions:
    name: Annotated[Literal["matrix", "extensions", "report", "fleet", "fleet-plan"], Argument()]


@command_with(SchemaOptions, short_help="Print the JSON Schema of a document.")
def command(options: SchemaOptions, _settings: Settings) -> None:
    """Print the JSON Schema of matrix.yaml, extensions.yaml, a report, a fleet's report or plan.

    \b
    envcheck schema report > report.schema.json
    """
    click.echo(schema(options.name), nl=False)


def schema(name: str) -> str:
    """Return the JSON Schema of a document."""
    module, _, struct = _STRUCTS[name].partition(":")
    kind = getattr(importlib.import_module(module), struct)
    document = {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(kind)}
    return msgspec.json.format(msgspec.json.encode(document, order="sorted"), indent=2).decode() + "\n"
