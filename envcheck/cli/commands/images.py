"""`envcheck images`: list the published cells and write them in other programs' formats; bills of materials; sizes."""

import datetime as dt
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import click

from envcheck.cli import Settings
from envcheck.cli.commands.resolve import fill
from envcheck.cli.options import (
    EXISTING_DIRECTORY,
    Argument,
    ImagesDirectory,
    JsonOption,
    Option,
    Options,
    command_with,
    complete_cells,
    exclusive,
)
from envcheck.cli.shared.process import note, print_json, print_table, say
from envcheck.counting import counted
from envcheck.data import data_path, rendered
from envcheck.errors import ConfigError, NothingLegalError, UnavailableError, refuse
from envcheck.images import engines, formats
from envcheck.images.build_context import tool_lock
from envcheck.images.lockfile import missing
from envcheck.images.plan import PLATFORMS
from envcheck.images.sbom import NOT_STATED, SEVERITIES, components, cyclonedx, read, vulnerabilities
from envcheck.images.size import distribution, measure
from envcheck.images.spec import ImageSpec, load_spec, load_specs, make_spec, no_lock, select, select_one
from envcheck.images.tags import REPOSITORY, parse
from envcheck.matrix.facts.lookup import Facts
from envcheck.matrix.facts.model import Cell, HostArch, Matrix, Target, key
from envcheck.matrix.file.load import load
from envcheck.matrix.resolver.query import normalized, requested_devices, whole_driver
from envcheck.matrix.resolver.resolve import Query, resolve

CellTargets = tuple[Cell, list[Target]]


class ImagesListOptions(JsonOption):
    selectors: Annotated[tuple[str, ...], Argument(metavar="[CELL]...", shell_complete=complete_cells)] = ()
    format: Annotated[
        str | None, Option("Print the file that this program reads, not the list.", type=click.Choice(formats.FORMATS))
    ] = None
    target: Annotated[Target | None, Option("Only this target of each cell.")] = None
    gpus: Annotated[tuple[str, ...], Option("--gpu", "Only what runs on this GPU. Repeatable.", metavar="NAME")] = ()
    driver: Annotated[str | None, Option("Only what this NVIDIA driver runs.", metavar="VERSION")] = None
    python: Annotated[str | None, Option("Only this Python version, e.g. 3.12.", metavar="X.Y")] = None
    cuda: Annotated[str | None, Option("--cuda", "--variant", "Only this CUDA.", metavar="X.Y|cuNNN|cpu")] = None
    platform: Annotated[
        Literal["linux/amd64", "linux/arm64"] | None, Option("With --format: only this platform. [all, or linux/amd64]")
    ] = None
    repository: Annotated[str, Option("Repository of the tags, with --format: HOST/NAME.")] = REPOSITORY
    images_dir: ImagesDirectory = None


@command_with(ImagesListOptions)
def list_(options: ImagesListOptions, settings: Settings) -> int:
    """List the published cells (torch, CUDA variant, Python): the first driver, targets, and what runs here."""
    exclusive(format=options.format, json=options.as_json)
    if options.platform and not options.format:
        refuse("--platform is for --format: the list has every cell once", "give --format, or leave --platform out")
    matrix, directory = load(settings.matrix), options.images_dir or data_path("images")
    chosen = _selected(matrix, options)
    if options.format:
        _write(options.format, _specs_of(matrix, chosen, directory, options), options)
        return 0
    rows = [_row(matrix, cell, targets, directory) for cell, targets in chosen]
    if options.as_json:
        print_json({"schema": "envcheck/images/1", "cells": rows})
    else:
        devices = requested_devices(Facts(matrix), normalized(Query(gpus=[*options.gpus])))
        firsts = (one.gpu.min_driver for one in devices if one.gpu)
        _show_list(rows, running_here(matrix), max(filter(None, firsts), key=key, default="0"))
    errors = [row["error"] for row in rows if row["error"]]
    for error in errors:
        say(error)
    return ConfigError.exit_code if errors else 0


def _selected(matrix: Matrix, options: ImagesListOptions) -> list[CellTargets]:
    cells = select(matrix, options.selectors)
    named = [(cell, [one for one in matrix.targets(cell) if options.target in (None, one)]) for cell in cells]
    chosen = [(cell, targets) for cell, targets in named if targets]
    query = Query(gpus=[*options.gpus], driver=options.driver, python=options.python, cuda=options.cuda)
    if chosen and query != Query():
        running = _running(matrix, query)
        chosen = [(cell, targets) for cell, targets in chosen if str(cell) in running]
        if not chosen:
            known = normalized(query).python in {None, *(cell.python for cell in cells)}
            fix = "ask `envcheck resolve` with these options why" if known else "none of them has this Python"
            refuse("no selected cell runs there", fix, NothingLegalError)
    if not chosen:
        refuse(f"no selected cell is published as {options.target}", "choose one that `envcheck images` lists")
    return chosen


def _running(matrix: Matrix, query: Query) -> set[str]:
    query, _ = whole_driver(Facts(matrix), normalized(query))
    # Without the package cuda-compat, which no image of ours has.
    return {row.cell for row in resolve(matrix, query).ranked if row.verdict != "forward-compat-required"}


def running_here(matrix: Matrix) -> set[str]:
    """Return the cells that this node's driver and GPUs run; none where they cannot be read."""
    from envcheck.node import collect  # most uses of these commands read no node

    try:
        return _running(matrix, fill(matrix, Query(), collect.identify(), "")[0].replace(python=None))
    except (UnavailableError, ConfigError):  # of a GPU before the oldest on record, say
        return set()


def _specs_of(
    matrix: Matrix, chosen: Sequence[CellTargets], directory: Path, options: ImagesListOptions
) -> list[ImageSpec]:
    archs: list[HostArch] = [arch for arch in get_args(HostArch) if options.platform in (None, PLATFORMS[arch])]
    archs = archs[:1] if formats.FORMATS[options.format or ""].one else archs
    specs = [
        load_spec(matrix, cell, target, images_dir=directory, arch=arch)
        for cell, targets in chosen
        for target in targets
        for arch in matrix.archs(cell)
        if arch in archs
    ]
    if not specs:
        refuse(
            f"no selected cell is published for {' or '.join(PLATFORMS[arch] for arch in archs)}",
            "leave --platform out, or choose a cell whose `platforms` in `envcheck images --json` name it",
        )
    return specs


def _write(format_name: str, specs: list[ImageSpec], options: ImagesListOptions) -> None:
    repository, tag = parse(options.repository)
    if tag is not None:
        refuse(
            f"--repository {options.repository} has the tag {tag!r}, and each image has a tag of its own",
            f"give --repository {repository}",
        )
    click.echo(formats.written(format_name, specs, repository), nl=False)
    for line in dict.fromkeys(str(no_lock(spec.cell, spec.arch)) for spec in specs if not spec.locks):
        cell, _, lacks = line.partition(" ")
        say(f"{cell} is left out: it {lacks}")


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


def _show_list(rows: list[dict[str, Any]], here: set[str], first: str) -> None:
    states = ["yes" if row["locked"] else "BAD" if row["missing"] or row["error"] else "NO" for row in rows]
    cells = [(row["cell"], row["promises"]["driver-floor"], " ".join(row["targets"])) for row in rows]
    lines = [
        (cell, state, "runs" if cell in here else "", least if least == "none" else max(least, first, key=key), targets)
        for (cell, least, targets), state in zip(cells, states, strict=True)
    ]
    print_table(("CELL", "LOCK", "HERE", "DRIVER FROM", "TARGETS"), lines)
    unusable = [row for row, state in zip(rows, states, strict=True) if state != "yes"]
    told = {"rows": rows, "locked": states.count("yes"), "unusable": unusable, "counted": counted}
    click.echo(rendered("printed/cells.txt.j2", told), nl=False)


class ImagesSbomOptions(Options):
    selector: Annotated[str, Argument(metavar="CELL", shell_complete=complete_cells)]
    target: Annotated[Target, Option("List what this target holds.")] = "runtime"
    metadata: Annotated[
        tuple[Path, ...],
        Option("Wheels, or an environment's site-packages: licences are read there.", type=EXISTING_DIRECTORY),
    ] = ()
    image: Annotated[str | None, Option("The built image: the distribution's packages are read there.")] = None
    images_dir: ImagesDirectory = None


@command_with(ImagesSbomOptions)
def sbom(options: ImagesSbomOptions, settings: Settings) -> None:
    """Print the CycloneDX bill of materials of a cell's image, from its locks: versions, hashes, purls, licences."""
    matrix = load(settings.matrix)
    cell = select_one(matrix, options.selector)
    if options.target not in matrix.targets(cell):
        refuse(f"{cell} is not published as {options.target}", f"choose --target {' or '.join(matrix.targets(cell))}")
    spec = load_spec(matrix, cell, options.target, images_dir=options.images_dir)
    if not spec.locks:
        raise no_lock(cell)
    listed = components(spec, tool_lock(), read(options.metadata))
    system = distribution(_engine(), options.image, spec) if options.image else []
    click.echo(cyclonedx(spec, [*listed, *system], _created()), nl=False)
    unknown = sum(one["licenses"] == [{"license": {"name": NOT_STATED}}] for one in listed)
    if unknown and not settings.quiet:
        note(f"{unknown} of {len(listed)} licences are not known: give --metadata DIR with the wheels")


class ImagesScanOptions(Options):
    subject: Annotated[str, Argument(metavar="IMAGE|SBOM")]
    severity: Annotated[Literal["low", "medium", "high", "critical"], Option("The least that counts.")] = "high"


@command_with(ImagesScanOptions)
def scan(options: ImagesScanOptions, settings: Settings) -> int:
    """Print the known vulnerabilities of an image, or of a file with a bill of materials, by Trivy or else Grype."""
    found, counts = vulnerabilities(options.subject), SEVERITIES[: SEVERITIES.index(options.severity) + 1]
    rows = [row for severity in counts for row in found if row[0] == severity]
    if not settings.quiet:
        print_table(("SEVERITY", "ID", "PACKAGE", "VERSION", "FIXED IN"), rows)
    click.echo(f"{counted(len(rows), 'vulnerability', 'vulnerabilities')} of {options.severity} severity or worse")
    return 1 if rows else 0


def _created() -> dt.datetime:
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    try:
        seconds = int(epoch) if epoch else dt.datetime.now(dt.timezone.utc).timestamp()
        return dt.datetime.fromtimestamp(seconds, dt.timezone.utc)
    except (ValueError, OverflowError, OSError):
        refuse(f"SOURCE_DATE_EPOCH is {epoch!r}, not seconds since 1970", "set it to a whole number, or unset it")


class ImageSizeOptions(JsonOption):
    image: Annotated[str, Argument(metavar="IMAGE")]
    engine: Annotated[Literal["auto", "docker", "podman"], Option("Ask this engine for the image.")] = "auto"


@command_with(ImageSizeOptions)
def size(options: ImageSizeOptions, settings: Settings) -> None:
    """Print where the bytes of a local image are: its layers, and its largest Python packages."""
    measured = measure(_engine(options.engine), options.image)
    if options.as_json:
        print_json(measured)
    else:
        click.echo(rendered("printed/size.txt.j2", {"size": measured, "quiet": settings.quiet}).rstrip("\n"))


def _engine(wanted: Literal["auto", "docker", "podman"] = "auto") -> engines.ContainerEngine:
    engine = engines.find(wanted)
    if engine == "venv":
        refuse("neither docker nor podman answers", "start docker or podman", UnavailableError)
    return engine
