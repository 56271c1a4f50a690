"""`envcheck lock`."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envcheck.cli import _complete
from envcheck.cli._asked import Asked, client_of
from envcheck.cli._words import counted

if TYPE_CHECKING:
    from envcheck.cli import Settings
    from envcheck.matrix.model import Cell, Matrix
    from envcheck.mirrors.profile import Profile


@click.command("lock", epilog="Example: envcheck lock 'torch2.8*' --mirror host")
@click.argument("selectors", nargs=-1, metavar="[SELECTOR]...", shell_complete=_complete.cells)
@click.option("--mirror", default="host", show_default=True, help="none, host, or a profile's YAML file.")
@click.option(
    "--images", "images_dir", type=click.Path(path_type=Path, file_okay=False), help="Where the cells are. [images/]"
)
@click.option("--tool", is_flag=True, help="Lock envcheck's own environment inside images (needs pyproject.toml).")
@click.option("--model", metavar="REPO@REV", help="Lock a Hugging Face model instead: every file with its sha256.")
@click.option("--dataset", metavar="REPO@REV", help="The same of a dataset.")
@click.option("--trust-mirror", is_flag=True, help="Believe the mirror itself about a model's hashes.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="Where a model's lock goes. [stdout]")
@click.pass_obj
def command(
    settings: Settings,
    /,
    *,
    selectors: tuple[str, ...],
    mirror: str,
    images_dir: Path | None,
    tool: bool,
    output: Path | None,
    **asked: Any,
) -> None:
    """Pin every package of a cell, with hashes.

    SELECTOR is a cell's name or a glob; all cells without one. The locks hold versions and sha256 only: no URL, no
    date, no mirror. A cell that cannot be locked keeps what it had and is named at the end. A model's lock is made from
    the profile's `hf.trusted`, or huggingface_hub's own endpoint, and `envcheck fetch --lock` takes it.

    Exit 0: all are locked; 2: wrong usage; 3: a cell could not be locked.
    """
    from envcheck.data import own_images
    from envcheck.images.spec import select
    from envcheck.matrix.load import load
    from envcheck.mirrors import load as load_profile

    profile = load_profile(mirror)
    if asked["model"] is not None or asked["dataset"] is not None:
        _lock_model(Asked(None, None, None, sha256=None, **asked), profile, selectors, output)
        return
    if tool:
        _lock_tool(profile)
        return
    matrix = load(settings.matrix)
    cells = select(matrix, selectors)
    directory = images_dir or own_images()
    failed = [cell for cell in cells if not _lock(matrix, cell, profile, directory, settings)]
    then = "; next: envcheck render" if len(failed) < len(cells) else ""
    click.echo(f"locked {len(cells) - len(failed)} of {len(cells)}{then}")
    if failed:
        click.echo(f"without a new lock: {' '.join(map(str, failed))}", err=True)
        raise SystemExit(3)


def _lock_model(asked: Asked, profile: Profile, selectors: tuple[str, ...], output: Path | None) -> None:
    from envcheck.errors import ConfigError
    from envcheck.mirrors.hf import format_lock, reference
    from envcheck.mirrors.hub import trusted
    from envcheck.mirrors.models import locked

    if selectors or (asked.model is not None and asked.dataset is not None):
        message = "more than one thing to lock"
        raise ConfigError(message, fix="give a cell's SELECTOR, --model REPO@REV or --dataset REPO@REV")
    ref = reference(asked.model, "model") if asked.model is not None else reference(asked.dataset or "", "dataset")
    endpoint = trusted(profile, mirror=asked.trust_mirror)
    lock = locked(client_of(profile, 8, endpoint), endpoint, ref)
    if output is None:
        click.echo(format_lock(lock).decode(), nl=False)
        return
    output.write_bytes(format_lock(lock))
    size = sum(file.size for file in lock.files)
    click.echo(f"{lock.repo}@{lock.revision}: {counted(len(lock.files), 'file')}, {size / 1e6:.1f} MB -> {output}")


def _lock(matrix: Matrix, cell: Cell, profile: Profile, images_dir: Path, settings: Settings) -> bool:
    from envcheck.errors import EnvcheckError
    from envcheck.images.resolving import companions, lock_cell
    from envcheck.images.spec import make_spec
    from envcheck.images.store import write_locks

    try:
        locks = lock_cell(matrix, cell, profile)
        spec = make_spec(matrix, cell, locks, where=str(images_dir / str(cell)))
    except EnvcheckError as error:
        told = str(error) if str(cell) in str(error) else f"{cell}: {error}"
        lines = textwrap.wrap(told, 80, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        click.echo("\n".join(lines), err=True)
        return False
    changed = write_locks(images_dir, cell, locks)
    if not settings.quiet:
        what = ", ".join([*companions(locks), f"cuDNN {spec.promises['cudnn']}", f"NCCL {spec.promises['nccl']}"])
        click.echo(f"{cell}: {'locked' if changed else 'as it was'} ({what})")
    return True


def _lock_tool(profile: Profile) -> None:
    from envcheck.data import data_path
    from envcheck.images.lock import format_lock
    from envcheck.images.resolving import image_requirements, lock_tool
    from envcheck.matrix.load import load

    target = data_path("templates") / "envcheck.lock"
    pythons = [base.python for base in load().bases]
    lock = lock_tool(image_requirements(target.parent.parent / "pyproject.toml"), pythons, profile)
    target.write_text(format_lock(lock, "envcheck's own environment in an image"))
    click.echo(f"{counted(len(lock.pins), 'package')} for Python {', '.join(pythons)}")
