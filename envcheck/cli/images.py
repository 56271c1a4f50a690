"""`envcheck images`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envcheck.cli import _complete
from envcheck.cli._words import counted

if TYPE_CHECKING:
    from envcheck.cli import Settings
    from envcheck.images.spec import ImageSpec


@click.command("images", epilog="Example: envcheck images 'torch2.8*' --json")
@click.argument("selectors", nargs=-1, metavar="[SELECTOR]...", shell_complete=_complete.cells)
@click.option("--json", "as_json", is_flag=True, help="For programs: envcheck/images/1.")
@click.option(
    "--images",
    "images_dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Where the cells are. [images/]",
)
@click.pass_obj
def command(settings: Settings, *, selectors: tuple[str, ...], as_json: bool, images_dir: Path | None) -> None:
    """List the published cells: base, driver floor, targets, and which still lack a lock.

    With --json also their tags and all that they promise. Exit 0: listed, whatever lacks a lock; 2: wrong usage.
    """
    from envcheck.data import data_path
    from envcheck.images.spec import load_spec, select
    from envcheck.matrix.load import load

    matrix = load(settings.matrix)
    targets = {(i.torch, i.variant, python): i.targets for i in matrix.images for python in i.python}
    directory = images_dir or data_path("images")
    specs = [load_spec(matrix, cell, images_dir=directory) for cell in select(matrix, selectors)]
    rows = [_row(spec, list(targets[spec.cell.torch, spec.cell.variant, spec.cell.python])) for spec in specs]
    if as_json:
        click.echo(json.dumps({"schema": "envcheck/images/1", "cells": rows}, indent=1))
        return
    _table(rows)


def _row(spec: ImageSpec, targets: list[str]) -> dict[str, Any]:
    tags = [f"{str(spec.cell).removeprefix('torch')}-{target}" for target in targets]
    return {
        "cell": str(spec.cell),
        "targets": targets,
        "base": spec.base.image,
        "locked": bool(spec.locks),
        "tags": tags,
        "promises": spec.promises,
    }


def _table(rows: list[dict[str, Any]]) -> None:
    layout = "{:<26} {:<20} {:<5} {:<14} {}"
    click.echo(layout.format("CELL", "BASE", "LOCK", "DRIVER FLOOR", "TARGETS").rstrip())
    for row in rows:
        lock = "yes" if row["locked"] else "NO"
        floor = row["promises"]["driver-floor"]
        click.echo(layout.format(row["cell"], row["base"], lock, floor, " ".join(row["targets"])).rstrip())
    unlocked = [row["cell"] for row in rows if not row["locked"]]
    click.echo(f"\n{counted(len(rows), 'cell')}, {len(rows) - len(unlocked)} locked; tagged like {rows[0]['tags'][0]}")
    if unlocked:
        click.echo("without a lock, so `envcheck build` refuses them:")
        for cell in unlocked:
            click.echo(f"  {cell}: run `envcheck lock {cell}` where its index can be reached")
