"""`envcheck mirror list`: the mirrors that can be named."""

from __future__ import annotations

import json

import click


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print the names as JSON.")
def command(*, as_json: bool) -> None:
    """List the mirrors that `--mirror` takes by name.

    \b
    envcheck mirror list
    """
    from envcheck.mirrors.load import PRESETS

    if as_json:
        click.echo(json.dumps({"schema": "envcheck/mirrors/1", "mirrors": [{"name": name} for name in PRESETS]}))
        return
    for name in PRESETS:
        click.echo(name)
