"""`envcheck lock` and `envcheck render`: what a cell's directory below images/ holds."""

import shlex
from pathlib import Path
from typing import Annotated, Literal

import click

from envcheck import safe_files
from envcheck.cli import Settings
from envcheck.cli.building.pinned import extensions_of_target
from envcheck.cli.options import (
    DIRECTORY,
    FILE,
    Argument,
    ImagesDirectory,
    Option,
    Options,
    architecture,
    command_with,
    complete_cells,
    exclusive,
)
from envcheck.cli.shared.process import say, wrapped
from envcheck.counting import counted
from envcheck.data import data_path, own_images, rendered
from envcheck.errors import ConfigError, EnvcheckError, refuse
from envcheck.images import build_context, lock_on_top, lock_with_uv, tags
from envcheck.images.dockerfile import drift, remove_orphans, render_cells, write_locks
from envcheck.images.dockerfile import write as write_files
from envcheck.images.formats import bake_of_checkout
from envcheck.images.lock_with_uv import companions
from envcheck.images.lockfile import Lock, read_locks
from envcheck.images.spec import ImageSpec, load_specs, make_spec, select
from envcheck.images.targets import SHARED_GROUPS
from envcheck.matrix.facts.model import Cell, HostArch, Matrix, Target
from envcheck.matrix.file.load import load
from envcheck.mirrors.hub import format_lock, lock_revision, parse_reference, trusted_endpoint
from envcheck.mirrors.net.client import hub_client
from envcheck.mirrors.profiles.load import load as load_profile
from envcheck.mirrors.profiles.model import Profile


class LockOptions(Options):
    selectors: Annotated[tuple[str, ...], Argument(metavar="[CELL]...", shell_complete=complete_cells)] = ()
    mirror: Annotated[str, Option("none, host, or a profile's YAML file.")] = "host"
    images_dir: Annotated[
        Path | None, Option("--images", "Where the cells are; created if it does not exist. [images/]", type=DIRECTORY)
    ] = None
    targets: Annotated[
        tuple[Target, ...],
        Option("--target", "Lock only what this target adds to the locks that are there. Repeatable. [all]"),
    ] = ()
    arch: Annotated[HostArch, Option("The architecture that is locked.")] = "x86_64"
    model: Annotated[str | None, Option("Lock a Hugging Face model instead.", metavar="REPO@REV")] = None
    dataset: Annotated[str | None, Option("Lock a Hugging Face dataset instead.", metavar="REPO@REV")] = None
    trust_mirror: Annotated[bool, Option("Trust the mirror for a model's hashes.")] = False
    output: Annotated[Path | None, Option("-o", "--output", "File for a model's lock. [stdout]", type=FILE)] = None


@command_with(LockOptions)
def lock(options: LockOptions, settings: Settings) -> None:
    """Pin every package of a cell (one torch, CUDA variant and Python), with hashes."""
    profile = load_profile(options.mirror)
    if options.model is not None or options.dataset is not None:
        _lock_model(options, profile)
        return
    matrix = load(settings.matrix)
    cells = [c for c in select(matrix, options.selectors) if options.selectors or options.arch in matrix.archs(c)]
    directory = options.images_dir or own_images()
    failed = [c for c in cells if not _lock(matrix, c, profile, directory, options, settings)]
    where = f" --images {options.images_dir}" if options.images_dir else ""
    then = f"; next: envcheck render{where}" if len(failed) < len(cells) else ""
    click.echo(f"locked {len(cells) - len(failed)} of {len(cells)}{then}")
    if failed:
        click.echo(f"without a new lock: {' '.join(map(str, failed))}", err=True)
        raise SystemExit(3)


def _lock_model(options: LockOptions, profile: Profile) -> None:
    if options.selectors or (options.model is not None and options.dataset is not None):
        refuse("CELL, --model and --dataset exclude each other", "give one of them")
    kind: Literal["model", "dataset"] = "dataset" if options.model is None else "model"
    ref = parse_reference(options.model or options.dataset or "", kind)
    endpoint = trusted_endpoint(profile, mirror=options.trust_mirror)
    lock = lock_revision(hub_client(profile, endpoint, connections=8), endpoint, ref)
    if options.output is None:
        click.echo(format_lock(lock).decode(), nl=False)
        return
    safe_files.replace(options.output, format_lock(lock))
    files = f"{counted(len(lock.files), 'file')}, {sum(file.size for file in lock.files) / 1e6:.1f} MB"
    click.echo(f"{lock.repo}@{lock.revision}: {files} -> {options.output}")


def _lock(
    matrix: Matrix, cell: Cell, profile: Profile, images_dir: Path, options: LockOptions, settings: Settings
) -> bool:
    try:
        arch = options.arch
        kept = read_locks(images_dir / str(cell), arch=arch) if options.targets else []
        like = read_locks(images_dir / str(cell)) if arch != "x86_64" else []
        shared = [lock for lock in kept if lock.group in SHARED_GROUPS]
        locks = shared or lock_with_uv.lock_cell(matrix, cell, profile, arch, like)
        spec = make_spec(matrix, cell, locks, arch=arch, where=str(images_dir / str(cell)))
        targets = options.targets or matrix.targets(cell)
        added: list[Lock] = []
        for target in targets:
            native = extensions_of_target(matrix, make_spec(matrix, cell, locks, target=target, arch=arch))
            added += lock_on_top.lock_target(matrix, cell, target, locks, profile, arch, like, native)
    except EnvcheckError as error:
        message = str(error) if str(cell) in str(error) else f"{cell}: {error}"
        click.echo(wrapped(message, then="  "), err=True)
        return False
    groups = {lock.group: lock for lock in [*kept, *locks, *added]}
    changed = write_locks(images_dir, cell, [*groups.values()], arch)
    if not settings.quiet:
        versions = ", ".join([*companions(locks), f"cuDNN {spec.promises['cudnn']}", f"NCCL {spec.promises['nccl']}"])
        click.echo(f"{cell}: {'locked' if changed else 'as it was'} ({versions})")
    return True


class RenderImagesOptions(Options):
    selectors: Annotated[tuple[str, ...], Argument(metavar="[CELL]...", shell_complete=complete_cells)] = ()
    check: Annotated[bool, Option("Change nothing; exit 1 naming every missing, stale and orphan file.")] = False
    mirror: Annotated[str | None, Option("none, host, or a profile's YAML file; with --output.")] = None
    output: Annotated[Path | None, Option("-o", "--output", "Write one cell's whole build context here.")] = None
    images_dir: ImagesDirectory = None


@command_with(RenderImagesOptions)
def render(options: RenderImagesOptions, settings: Settings) -> int:
    """Write images/<cell>/ from the matrix, the locks and templates/, or one cell's build context."""
    mirror, output = options.mirror, options.output
    if (mirror is None) != (output is None):
        refuse("--mirror and --output go together", "give both for a build context, or neither for images/")
    exclusive(check=options.check, output=output)
    shipped = options.check or output is not None
    matrix = load(settings.matrix)
    cells = select(matrix, options.selectors)
    directory = options.images_dir or (data_path("images") if shipped else own_images("--mirror none -o DIR"))
    specs = [
        spec
        for cell in cells
        for arch in matrix.archs(cell)
        for spec in load_specs(matrix, cell, images_dir=directory, arch=arch)
    ]
    if mirror is not None and output is not None:
        _context(specs, mirror, output, settings)
        return 0
    return (_check if options.check else _render)(specs, directory, options, settings)


def _without_lock(specs: list[ImageSpec], options: RenderImagesOptions) -> list[str]:
    where = f" --images {shlex.quote(str(options.images_dir))}" if options.images_dir else ""
    cells = sorted({str(spec.cell) for spec in specs if not spec.locks})
    shown = options.images_dir or "images"
    return [f"{shown}/{cell} has no lock; run `envcheck lock {cell}{where}`" for cell in cells]


def _files(specs: list[ImageSpec], options: RenderImagesOptions) -> dict[str, bytes]:
    """Return what is to lie in images/; in the checkout's, whose cells they all are, the bake file too."""
    locked = [spec for spec in specs if spec.locks]
    bake = {} if options.selectors or options.images_dir else {"bake.json": bake_of_checkout(locked).encode()}
    return render_cells(locked) | bake


def _check(specs: list[ImageSpec], images_dir: Path, options: RenderImagesOptions, _settings: Settings) -> int:
    """Compare. Every cell of `specs` must have locks, but a directory of the user's own may hold some cells only."""
    everything, shown = not options.selectors, options.images_dir or "images"
    files = _files(specs, options)
    cells = {str(spec.cell) for spec in specs if spec.locks}
    unlocked = [] if options.images_dir and everything else _without_lock(specs, options)
    found = [one for one in drift(images_dir, files) if everything or one.path.partition("/")[0] in cells]
    lines = [*(f"missing: {line}" for line in unlocked), *(f"{one.kind}: {shown}/{one.path}" for one in found)]
    if found:
        count = f"{len(found)} of {counted(len(files), 'file')} differ"
        lines.append(f"{count}; run `envcheck render` and commit what it writes")
    fresh = f"{counted(len(files), 'file')} in {counted(len(cells), 'cell')} are up to date"
    click.echo("\n".join(lines or [fresh]))
    return int(bool(lines))


def _render(specs: list[ImageSpec], images_dir: Path, options: RenderImagesOptions, settings: Settings) -> int:
    lacking, shown = _without_lock(specs, options), options.images_dir or "images"
    if lacking and options.selectors:
        message, _, fix = lacking[0].partition("; ")
        raise ConfigError(message, fix=fix)
    if lacking:
        say(f"{counted(len(lacking), 'cell')} without a lock, so nothing to render: {lacking[0]}")
    files = _files(specs, options)
    changed = write_files(images_dir, files)
    removed = remove_orphans(images_dir, files) if not options.selectors else []
    lines = [*(f"wrote {shown}/{path}" for path in changed), *(f"removed {shown}/{path}" for path in removed)]
    total = f"{len(changed)} of {counted(len(files), 'file')} written, {len(removed)} removed in {images_dir}"
    click.echo("\n".join([total] if settings.quiet else [*lines, total]))
    return 0


def _context(specs: list[ImageSpec], mirror: str, output: Path, settings: Settings) -> None:
    cells = {spec.cell for spec in specs}
    if len(cells) != 1:
        refuse(f"--output takes one cell, and {len(cells)} are selected", "name one cell")
    arch = architecture("auto")
    specs = [spec for spec in specs if spec.arch == arch]
    if not specs:
        refuse(
            f"{next(iter(cells))} is not published for {arch}, and a context holds uv of this machine",
            "take another cell, or write it on a machine that the cell is published for",
        )
    context = build_context.write(specs, load_profile(mirror), output, matrix=settings.matrix)
    told = {
        "context": context,
        "carried": [group for group, whole in context.carried.items() if whole],
        "specs": sorted(specs, key=lambda each: each.target == "runtime"),
        "repository": tags.REPOSITORY,
        "output": output,
        "quiet": settings.quiet,
    }
    click.echo(rendered("printed/context.txt.j2", told), nl=False)
