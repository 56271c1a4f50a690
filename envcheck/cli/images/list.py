"""`envcheck images list`, which `envcheck images` is where no command is named."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import click

from envcheck.cli import Settings
from envcheck.cli.images.selection import selected, specs_of
from envcheck.cli.options import EXISTING_DIRECTORY, Argument, Option, command_with
from envcheck.cli.shared import messages
from envcheck.cli.shared.parameter_types import complete_cells
from envcheck.counting import counted
from envcheck.data import data_path
from envcheck.errors import ConfigError
from envcheck.images import formats
from envcheck.images.formats import FormatOptions
from envcheck.images.lockfile import missing
from envcheck.images.plan import PLATFORMS
from envcheck.images.spec import ImageSpec, load_specs, make_spec, no_lock
from envcheck.images.tags import REPOSITORY, parse
from envcheck.matrix.facts.model import Cell, HostArch, Matrix, Target
from envcheck.matrix.file.load import load


@dataclass(frozen=True, kw_only=True)
class ImagesListOptions:
    selectors: Annotated[tuple[str, ...], Argument(metavar="[CELL]...", shell_complete=complete_cells)] = ()
    format: Annotated[
        str | None, Option("Print the file that this program reads, not the list.", type=click.Choice(formats.FORMATS))
    ] = None
    target: Annotated[str | None, Option("Only this target of each cell.", type=click.Choice(get_args(Target)))] = None
    platform: Annotated[
        Literal["linux/amd64", "linux/arm64"] | None,
        Option("With --format: only this platform. [all; linux/amd64 where the format takes one]"),
    ] = None
    repository: Annotated[str, Option("Repository of the tags, with --format: HOST/NAME.")] = REPOSITORY
    changed_since: Annotated[str | None, Option("Only cells that differ from this revision of git.", metavar="REV")] = (
        None
    )
    changed: Annotated[
        str | None, Option("Only cells that these changed paths touch, one per line; - is stdin.", metavar="FILE")
    ] = None
    as_json: Annotated[bool, Option("--json", "For programs: envcheck/images/1.")] = False
    images_dir: Annotated[
        Path | None, Option("--images", "Where the cells are. [images/]", type=EXISTING_DIRECTORY)
    ] = None


@command_with(ImagesListOptions, epilog="Example: envcheck images 'torch2.8*' --json")
def command(options: ImagesListOptions, settings: Settings) -> int:
    """List the published cells: driver floor, targets, and which still lack a lock.

    With --json also their bases, tags and all that they promise. A lock that cannot be used is named in its row and on
    standard error; the other cells are listed. A changed template touches every cell, and a changed file of
    images/CELL/ that cell.

    Exit 0: listed, even if a cell lacks a lock; 2: a lock cannot be used, or wrong usage; 3: git is needed but not
    installed.
    """
    if options.format and options.as_json:
        message = "--format and --json exclude each other"
        raise ConfigError(message, fix="give one of them")
    if options.platform and not options.format:
        message = "--platform is for --format: the list has every cell once"
        raise ConfigError(message, fix="give --format github or --format bake, or leave --platform out")
    matrix, directory = load(settings.matrix), options.images_dir or data_path("images")
    chosen = selected(matrix, options, directory)
    if options.format:
        specs = specs_of(matrix, chosen, directory, _archs(options.format, options.platform))
        click.echo(formats.written(options.format, specs, FormatOptions(_repository(options.repository))), nl=False)
        _say_left_out(specs)
        return 0
    return _listed([_row(matrix, cell, targets, directory) for cell, targets in chosen], options)


def _archs(format_name: str, platform: str | None) -> list[HostArch]:
    """Return the architectures that a format gets: those of the platform, else all that it can hold."""
    archs = [arch for arch in get_args(HostArch) if platform in (None, PLATFORMS[arch])]
    return archs[:1] if formats.FORMATS[format_name].one else archs


def _repository(name: str) -> str:
    """Return the name, which must be that of a repository: the tags of its images say every axis themselves."""
    repository, tag = parse(name)
    if tag is not None:
        message = f"--repository {name} has the tag {tag!r}, and each image has a tag of its own"
        raise ConfigError(message, fix=f"give --repository {repository}")
    return repository


def _say_left_out(specs: list[ImageSpec]) -> None:
    """Name the cells that a format for many cells leaves out."""
    for line in dict.fromkeys(str(no_lock(spec.cell, spec.arch)) for spec in specs if not spec.locks):
        cell, _, lacks = line.partition(" ")
        messages.say(f"{cell} is left out: it {lacks}")


def _listed(rows: list[dict[str, Any]], options: ImagesListOptions) -> int:
    if options.as_json:
        click.echo(json.dumps({"schema": "envcheck/images/1", "cells": rows}, indent=1))
    else:
        _table(rows, own_images=options.images_dir is not None)
    errors = [row["error"] for row in rows if row["error"]]
    for error in errors:
        messages.say(error)
    return ConfigError.exit_code if errors else 0


def _row(matrix: Matrix, cell: Cell, targets: list[Target], directory: Path) -> dict[str, Any]:
    spec, wrong, lacking = make_spec(matrix, cell, []), None, missing(directory / str(cell))
    if not lacking:
        try:
            spec = load_specs(matrix, cell, images_dir=directory)[0]
        except ConfigError as error:
            wrong = str(error)
    return {
        "cell": str(spec.cell),
        "targets": targets,
        "platforms": [PLATFORMS[arch] for arch in matrix.archs(cell)],
        "base": spec.base.image,
        "locked": bool(spec.locks),
        "missing": lacking,
        "error": wrong,
        "tags": [f"{str(spec.cell).removeprefix('torch')}-{target}" for target in targets],
        "promises": spec.promises,
    }


def _table(rows: list[dict[str, Any]], *, own_images: bool) -> None:
    """Print the list; `own_images`: of a directory that --images names, where a build makes no lock."""
    if not rows:
        click.echo("no cell is touched")
        return
    layout = "{:<26} {:<5} {:<14} {}"
    click.echo(layout.format("CELL", "LOCK", "DRIVER FLOOR", "TARGETS").rstrip())
    for row in rows:
        lock = "yes" if row["locked"] else "BAD" if row["missing"] or row["error"] else "NO"
        floor = row["promises"]["driver-floor"]
        click.echo(layout.format(row["cell"], lock, floor, " ".join(row["targets"])).rstrip())
    locked = sum(row["locked"] for row in rows)
    click.echo(f"\n{counted(len(rows), 'cell')}, {locked} locked; tagged like {rows[0]['tags'][0]}")
    unusable = [row for row in rows if row["error"] or row["missing"]]
    lockless = [row for row in rows if not row["locked"] and row not in unusable]
    _name(unusable, "with a lock that cannot be used, so that `envcheck build` refuses them:")
    own = "so that `envcheck build --images` refuses them" if own_images else "which `envcheck build` makes first"
    _name(lockless, f"without a lock, {own}:")


def _name(rows: list[dict[str, Any]], title: str) -> None:
    for line in [title, *(f"  {row['cell']}: {_lacks(row)}" for row in rows)] if rows else []:
        click.echo(line)


def _lacks(row: dict[str, Any]) -> str:
    """Return what is wrong with the lock of a cell, and what to do."""
    if row["error"]:
        return str(row["error"])
    lacks = f"lacks {' and '.join(row['missing'])}: restore it, or " if row["missing"] else ""
    return f"{lacks}run `envcheck lock {row['cell']}` where its index can be reached"
