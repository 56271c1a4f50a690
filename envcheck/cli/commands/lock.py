"""`envcheck lock`."""

import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import click

from envcheck import safe_files
from envcheck.cli import Settings
from envcheck.cli.building.on_top import extensions_of_target
from envcheck.cli.options import DIRECTORY, FILE, Argument, Option, command_with, complete_cells
from envcheck.counting import counted
from envcheck.data import own_images
from envcheck.errors import ConfigError, EnvcheckError
from envcheck.images import lock_on_top, lock_with_uv
from envcheck.images.dockerfile import write_locks
from envcheck.images.lock_with_uv import companions
from envcheck.images.lockfile import Lock, read_locks
from envcheck.images.spec import make_spec, select
from envcheck.images.targets import SHARED_GROUPS
from envcheck.matrix.facts.model import Cell, Matrix
from envcheck.matrix.file.load import load
from envcheck.mirrors.hub import lock_revision, parse_reference, trusted_endpoint
from envcheck.mirrors.net.client import hub_client
from envcheck.mirrors.profiles.load import load as load_profile
from envcheck.mirrors.profiles.model import Profile


@dataclass(frozen=True, kw_only=True)
class LockOptions:
    selectors: Annotated[tuple[str, ...], Argument(metavar="[CELL]...", shell_complete=complete_cells)] = ()
    mirror: Annotated[str, Option("none, host, or a profile's YAML file.")] = "host"
    images_dir: Annotated[
        Path | None, Option("--images", "Where the cells are; created if it does not exist. [images/]", type=DIRECTORY)
    ] = None
    targets: Annotated[
        tuple[Literal["runtime", "devel", "train", "jupyter"], ...],
        Option(
            "--target", "Lock only what this target adds to the cell's locks as they are. Repeatable. [all of the cell]"
        ),
    ] = ()
    arch: Annotated[
        Literal["x86_64", "aarch64"],
        Option("The architecture that is locked; aarch64 with the versions of x86_64 where it has them."),
    ] = "x86_64"
    model: Annotated[
        str | None, Option("Lock a Hugging Face model instead: every file with its sha256.", metavar="REPO@REV")
    ] = None
    dataset: Annotated[str | None, Option("Lock a Hugging Face dataset instead.", metavar="REPO@REV")] = None
    trust_mirror: Annotated[bool, Option("Trust the mirror for a model's hashes.")] = False
    output: Annotated[Path | None, Option("-o", "--output", "File for a model's lock. [stdout]", type=FILE)] = None


@command_with(LockOptions, epilog="Example: envcheck lock 'torch2.8*' --mirror host")
def command(options: LockOptions, settings: Settings) -> None:
    """Pin every package of a cell (one torch, CUDA variant and Python), with hashes.

    CELL is a cell's name or a glob; all cells without one. The locks hold versions and sha256 only: no URL, no
    date, no mirror. A cell that cannot be locked keeps its old locks and is named at the end. A model's lock is made
    from the profile's `hf.trusted`, or huggingface_hub's own endpoint, and `envcheck fetch --lock` takes it.

    Exit 0: all are locked; 2: wrong usage; 3: a cell could not be locked.
    """
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
    from envcheck.mirrors.hub import format_lock

    if options.selectors or (options.model is not None and options.dataset is not None):
        message = "CELL, --model and --dataset exclude each other"
        raise ConfigError(message, fix="give one of them")
    kind: Literal["model", "dataset"] = "dataset" if options.model is None else "model"
    ref = parse_reference(options.model or options.dataset or "", kind)
    endpoint = trusted_endpoint(profile, mirror=options.trust_mirror)
    lock = lock_revision(hub_client(profile, endpoint, connections=8), endpoint, ref)
    if options.output is None:
        click.echo(format_lock(lock).decode(), nl=False)
        return
    safe_files.replace(options.output, format_lock(lock))
    size = sum(file.size for file in lock.files)
    files = f"{counted(len(lock.files), 'file')}, {size / 1e6:.1f} MB"
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
        lines = textwrap.wrap(message, 80, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        click.echo("\n".join(lines), err=True)
        return False
    groups = {lock.group: lock for lock in [*kept, *locks, *added]}
    changed = write_locks(images_dir, cell, [*groups.values()], arch)
    if not settings.quiet:
        versions = ", ".join([*companions(locks), f"cuDNN {spec.promises['cudnn']}", f"NCCL {spec.promises['nccl']}"])
        click.echo(f"{cell}: {'locked' if changed else 'as it was'} ({versions})")
    return True
