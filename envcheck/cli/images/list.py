"""`envcheck images list`, which `envcheck images` is where no command is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from envcheck.cli.shared import completion, messages
from envcheck.cli.shared.typed_options import takes
from envcheck.counting import counted
from envcheck.errors import ConfigError

if TYPE_CHECKING:
    from envcheck.cli import Settings
    from envcheck.matrix.facts.model import Cell, Matrix


class ImagesListOptions(NamedTuple):
    """The options of `envcheck images list`."""

    selectors: tuple[str, ...]
    as_json: bool
    images_dir: Path | None


@click.command("list", epilog="Example: envcheck images 'torch2.8*' --json")
@click.argument("selectors", nargs=-1, metavar="[CELL]...", shell_complete=completion.cells)
@click.option("--json", "as_json", is_flag=True, help="For programs: envcheck/images/1.")
@click.option(
    "--images",
    "images_dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Where the cells are. [images/]",
)
@click.pass_obj
@takes(ImagesListOptions)
def command(options: ImagesListOptions, settings: Settings) -> int:
    """List the published cells: base, driver floor, targets, and which still lack a lock.

    With --json also their tags and all that they promise. A lock that cannot be used is named in its row and on
    standard error; the other cells are listed.

    Exit 0: listed, whatever lacks a lock; 2: a lock cannot be used, or wrong usage.
    """
    from envcheck.data import data_path
    from envcheck.images.spec import select
    from envcheck.matrix.file.load import load

    matrix = load(settings.matrix)
    targets = {cell: choice.targets for choice in matrix.images for cell in choice.cells()}
    directory = options.images_dir or data_path("images")
    rows = [_row(matrix, cell, list(targets[cell]), directory) for cell in select(matrix, options.selectors)]
    if options.as_json:
        click.echo(json.dumps({"schema": "envcheck/images/1", "cells": rows}, indent=1))
    else:
        _table(rows)
    errors = [row["error"] for row in rows if row["error"]]
    for error in errors:
        messages.say(error)
    return ConfigError.exit_code if errors else 0


def _row(matrix: Matrix, cell: Cell, targets: list[str], directory: Path) -> dict[str, Any]:
    from envcheck.images.locks.lockfile import missing
    from envcheck.images.spec import load_spec, make_spec

    spec, wrong, lacking = make_spec(matrix, cell, []), None, missing(directory / str(cell))
    if not lacking:
        try:
            spec = load_spec(matrix, cell, images_dir=directory)
        except ConfigError as error:
            wrong = str(error)
    return {
        "cell": str(spec.cell),
        "targets": targets,
        "base": spec.base.image,
        "locked": bool(spec.locks),
        "missing": lacking,
        "error": wrong,
        "tags": [f"{str(spec.cell).removeprefix('torch')}-{target}" for target in targets],
        "promises": spec.promises,
    }


def _table(rows: list[dict[str, Any]]) -> None:
    layout = "{:<26} {:<20} {:<5} {:<14} {}"
    click.echo(layout.format("CELL", "BASE", "LOCK", "DRIVER FLOOR", "TARGETS").rstrip())
    for row in rows:
        lock = "yes" if row["locked"] else "BAD" if row["missing"] or row["error"] else "NO"
        floor = row["promises"]["driver-floor"]
        click.echo(layout.format(row["cell"], row["base"], lock, floor, " ".join(row["targets"])).rstrip())
    unlocked = [row for row in rows if not row["locked"]]
    click.echo(f"\n{counted(len(rows), 'cell')}, {len(rows) - len(unlocked)} locked; tagged like {rows[0]['tags'][0]}")
    if unlocked:
        click.echo("without a usable lock, so `envcheck build` refuses them:")
        for row in unlocked:
            click.echo(f"  {row['cell']}: {_lacks(row)}")


def _lacks(row: dict[str, Any]) -> str:
    """Return why a cell cannot be built, and what to do."""
    if row["error"]:
        return str(row["error"])
    lacks = f"lacks {' and '.join(row['missing'])}: restore it, or " if row["missing"] else ""
    return f"{lacks}run `envcheck lock {row['cell']}` where its index can be reached"
