"""`envcheck images`: list the published cells, which targets and changes select; bills of materials; sizes."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final, Literal, get_args

import click
import msgspec

from envcheck.cli import Settings
from envcheck.cli.options import EXISTING_DIRECTORY, Argument, ImagesDirectory, Option, command_with, complete_cells
from envcheck.cli.shared.process import note, say
from envcheck.counting import counted
from envcheck.data import data_path
from envcheck.errors import ConfigError, UnavailableError
from envcheck.images import engines, formats
from envcheck.images.build_context import tool_lock
from envcheck.images.engines import subprocesses
from envcheck.images.engines.subprocesses import stream
from envcheck.images.formats import FormatOptions
from envcheck.images.lockfile import missing
from envcheck.images.plan import PLATFORMS
from envcheck.images.sbom import components, cyclonedx, read
from envcheck.images.size import ImageSize, measure
from envcheck.images.spec import ImageSpec, load_spec, load_specs, make_spec, no_lock, select, select_one
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
    as_json: Annotated[bool, Option("--json", "For programs: envcheck/images/1.")] = False
    images_dir: ImagesDirectory = None


@command_with(ImagesListOptions, epilog="Example: envcheck images 'torch2.8*' --json")
def list_(options: ImagesListOptions, settings: Settings) -> int:
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
        say(f"{cell} is left out: it {lacks}")


def _listed(rows: list[dict[str, Any]], options: ImagesListOptions) -> int:
    if options.as_json:
        click.echo(json.dumps({"schema": "envcheck/images/1", "cells": rows}, indent=1))
    else:
        _table(rows, own_images=options.images_dir is not None)
    errors = [row["error"] for row in rows if row["error"]]
    for error in errors:
        say(error)
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


CellTargets = tuple["Cell", list["Target"]]
# Folders of templates/ that no image is made from: mirror sites, and what other tools read.
NOT_OF_IMAGES: Final = frozenset({"site", "formats"})


def selected(matrix: Matrix, options: ImagesListOptions, images_dir: Path) -> list[CellTargets]:
    """Return the cells with their targets; a target that no named cell has is a ConfigError."""
    named = [
        (cell, [target for target in matrix.targets(cell) if options.target in (None, target)])
        for cell in select(matrix, options.selectors)
    ]
    chosen = [(cell, targets) for cell, targets in named if targets]
    if not chosen:
        message = f"no selected cell is published as {options.target}"
        raise ConfigError(message, fix="choose a target that `envcheck images` lists for the cell")
    return _touched(chosen, options, images_dir)


def _touched(chosen: list[CellTargets], options: ImagesListOptions, images_dir: Path) -> list[CellTargets]:
    """Return those that the named changes touch; all where no change is named."""
    if options.changed_since is None:
        return chosen
    paths = _since(options.changed_since, images_dir)
    touched = set(changed_cells(paths, [str(cell) for cell, _ in chosen]))
    return [(cell, targets) for cell, targets in chosen if str(cell) in touched]


def changed_cells(paths: Iterable[str], cells: Sequence[str]) -> list[str]:
    """Return the cells whose images these paths change, in the order given.

    A path is below the repository's top, as `git diff --name-only` writes it. images/<cell>/ and what is in it change
    that cell. A template changes every cell, unless its folder is known to be of no image. A change of matrix.yaml is
    seen in the rendered files, which `envcheck render --check` holds to it, so that it need not be read here.
    """
    parts = [PurePosixPath(path).parts for path in paths]
    if any(_is_template(path) for path in parts):
        return list(cells)
    touched = {path[1] for path in parts if path[:1] == ("images",) and path[1:]}
    return [cell for cell in cells if cell in touched]


def _is_template(path: tuple[str, ...]) -> bool:
    return path[:1] == ("templates",) and path[1:2] not in [(name,) for name in NOT_OF_IMAGES]


def specs_of(
    matrix: Matrix, chosen: Sequence[CellTargets], images_dir: Path, archs: Sequence[HostArch]
) -> list[ImageSpec]:
    """Return one spec for each target of each cell on each of these architectures that the cell is published for."""
    specs = [
        load_spec(matrix, cell, target, images_dir=images_dir, arch=arch)
        for cell, targets in chosen
        for target in targets
        for arch in matrix.archs(cell)
        if arch in archs
    ]
    if chosen and not specs:
        message = f"no selected cell is published for {' or '.join(PLATFORMS[arch] for arch in archs)}"
        raise ConfigError(
            message, fix="leave --platform out, or choose a cell whose `platforms` in `envcheck images --json` name it"
        )
    return specs


def spec_of(matrix_file: Path | None, selector: str, target: Target, images_dir: Path | None) -> ImageSpec:
    """Return one target of the one cell that the selector names, locked; ConfigError otherwise."""
    matrix = load(matrix_file)
    cell = select_one(matrix, selector)
    published = matrix.targets(cell)
    if target not in published:
        message = f"{cell} is not published as {target}"
        raise ConfigError(message, fix=f"choose --target {' or '.join(published)}")
    spec = load_spec(matrix, cell, target, images_dir=images_dir)
    if not spec.locks:
        raise no_lock(cell)
    return spec


_SECONDS: Final = 60.0


def _since(revision: str, directory: Path) -> list[str]:
    """Return what differs between the checkout of `directory` and where its branch left `revision`, as git has it.

    Files that git does not know yet count. Raise ConfigError where git cannot tell.
    """
    if subprocesses.which("git") is None:
        message = "--changed-since asks git, which is not installed"
        raise UnavailableError(message, fix="install git")
    paths: list[str] = []
    for words in (
        # First: outside a checkout `git diff` would compare two files instead.
        ["ls-files", "--others", "--exclude-standard", "--full-name", "-z", "--", ":/"],
        ["diff", "--name-only", "--no-renames", "-z", "--merge-base", "--end-of-options", revision],
    ):
        result = stream(["git", "-C", str(directory), *words], timeout=_SECONDS)
        if result.status != 0:
            first = (result.output.strip().splitlines() or ["it gave no reason"])[0].removeprefix("fatal: ")
            message = f"git cannot compare with {revision!r}: {first}"
            raise ConfigError(message, fix="name a revision of this checkout, with its history up to the common one")
        paths += [path for path in result.output.split("\0") if path]
    return paths


@dataclass(frozen=True, kw_only=True)
class ImagesSbomOptions:
    selector: Annotated[str, Argument(metavar="CELL", shell_complete=complete_cells)]
    target: Annotated[Target, Option(type=click.Choice(get_args(Target)))] = "runtime"
    metadata: Annotated[
        tuple[Path, ...],
        Option("Wheels, or an environment's site-packages: licences are read there.", type=EXISTING_DIRECTORY),
    ] = ()
    images_dir: ImagesDirectory = None


@command_with(ImagesSbomOptions, epilog="Example: envcheck images sbom torch2.13.0-cpu-py311")
def sbom(options: ImagesSbomOptions, settings: Settings) -> None:
    """Print the CycloneDX bill of materials of a cell's image, from its locks: versions, hashes, purls, licences.

    It lists the packages of the target and those of envcheck's own environment in the image. The distribution's
    packages are not locked, and the document says so. A licence is what a package's own metadata states; where no
    directory of --metadata has that version, it is NOASSERTION. SOURCE_DATE_EPOCH sets the document's date.

    Exit 0: printed; 2: the cell has no lock, or wrong usage.
    """
    spec = spec_of(settings.matrix, options.selector, options.target, options.images_dir)
    listed = components(spec, tool_lock(), read(options.metadata))
    click.echo(cyclonedx(spec, listed, _created()), nl=False)
    unknown = sum(one.licence is None for one in listed)
    if unknown and not settings.quiet:
        note(f"{unknown} of {len(listed)} licences are not known: give --metadata DIR with the wheels")


def _created() -> dt.datetime:
    """Return the date of the document: now, or what SOURCE_DATE_EPOCH says."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if not epoch:
        return dt.datetime.now(dt.timezone.utc)
    try:
        if epoch.isdecimal():
            return dt.datetime.fromtimestamp(int(epoch), dt.timezone.utc)
    except (ValueError, OverflowError, OSError):
        pass  # a year that no date has
    message = f"SOURCE_DATE_EPOCH is {epoch!r}, not seconds since 1970"
    raise ConfigError(message, fix="set it to a whole number, or unset it")


_SHOWN = 12
_STEP = 58


@dataclass(frozen=True, kw_only=True)
class ImageSizeOptions:
    image: Annotated[str, Argument(metavar="IMAGE")]
    engine: Annotated[Literal["auto", "docker", "podman"], Option()] = "auto"
    as_json: Annotated[bool, Option("--json", "For programs: envcheck/image-size/1, every package.")] = False


@command_with(ImageSizeOptions, epilog="Example: envcheck images size envcheck/torch:2.13.0-cpu-py311-runtime")
def size(options: ImageSizeOptions, settings: Settings) -> None:
    """Print where the bytes of a local image are: its layers, and its largest Python packages.

    The image is started once, without a network, to count the files of its packages.

    Exit 0: measured; 1: it has no Python; 2: wrong usage, or there is no such image; 3: no engine answers.
    """
    engine = engines.find(options.engine)
    if engine == "venv":
        message = "neither docker nor podman answers"
        raise UnavailableError(message, fix="start docker or podman")
    measured = measure(engine, options.image)
    if options.as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(measured)))
    else:
        _show(measured, quiet=settings.quiet)


def _show(measured: ImageSize, *, quiet: bool) -> None:
    click.echo(f"total   {measured.total / 1e6:.1f} MB in {len(measured.layers)} layers")
    if quiet:
        return
    for layer in measured.layers:
        step = " ".join(layer.step.split()).removeprefix("/bin/sh -c ").removeprefix("RUN ")
        click.echo(f"  {layer.bytes / 1e6:10.1f} MB  {step[-_STEP:]}")
    shown = list(measured.packages.items())[:_SHOWN]
    click.echo(f"packages, the {len(shown)} largest of {len(measured.packages)}")
    for name, size in shown:
        click.echo(f"  {size / 1e6:10.1f} MB  {name}")
