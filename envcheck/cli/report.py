"""`envcheck report`."""

from __future__ import annotations

from pathlib import Path

import click


@click.group(short_help="Show a report again; its JSON Schema.")
def command() -> None:
    """Read what `envcheck run` wrote.

    \b
    envcheck report show envcheck-report.json
    envcheck report schema > report.schema.json
    """


@command.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def show(file: Path) -> None:
    """Print a report as `envcheck run` printed it.

    \b
    envcheck report show envcheck-report.json
    """
    from rich.console import Console

    from envcheck.reports.model import load
    from envcheck.reports.terminal import WIDTH
    from envcheck.reports.terminal import show as print_report

    print_report(load(file), Console(width=WIDTH, highlight=False))


@command.command()
def schema() -> None:
    """Print the JSON Schema of a report.

    \b
    envcheck report schema > report.schema.json
    """
    from envcheck.reports.model import json_schema

    click.echo(json_schema(), nl=False)
