"""`envcheck render`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import click

from envcheck.cli import Settings
from envcheck.cli.options import Argument, ImagesDirectory, Option, architecture, command_with, complete_cells
from envcheck.counting import counted
from envcheck.data import data_path, own_images
from envcheck.errors import ConfigError
from envcheck.images import tags
from envcheck.images.dockerfile import drift, remove_orphans, render_cells
from envcheck.images.spec import ImageSpec, load_specs, select

_NAMED: Final = 3  # of the cells without a lock
_EPILOG = """\b
Examples:
  envcheck render --check
  envcheck render torch2.8.0-cu128-py312 --mirror host -o ctx
  docker build --secret id=netrc,src=$HOME/.netrc ctx

\b
A mirror profile of your own:
  pypi: [{url: "https://mirror.example/pypi/simple"}]
  pytorch: [{url: "https://mirror.example/whl/{variant}"}]
  apt: ["https://mirror.example"]
  hf: {endpoint: "https://hf.mirror.example"}
  registry: registry.example:5000
  ca: site-ca.pem
  netrc: ~/.netrc
"""


@dataclass(frozen=True, kw_only=True)
class RenderImagesOptions:
    selectors: Annotated[tuple[str, ...], Argument(metavar="[CELL]...", shell_complete=complete_cells)] = ()
    check: Annotated[bool, Option("Change nothing; exit 1 naming every missing, stale and orphan file.")] = False
    mirror: Annotated[str | None, Option("none, host, or a profile's YAML file; with --output.")] = None
    output: Annotated[Path | None, Option("-o", "--output", "Write one cell's whole build context here.")] = None
    images_dir: ImagesDirectory = None

    @property
    def shown(self) -> str:
        """Return the directory of the cells as messages name it."""
        return str(self.images_dir or "images")

    @property
    def where(self) -> str:
        """Return the option that names this directory to the next command."""
        return f" --images {shlex.quote(str(self.images_dir))}" if self.images_dir else ""


@command_with(RenderImagesOptions, epilog=_EPILOG)
def command(options: RenderImagesOptions, settings: Settings) -> None:
    """Write images/<cell>/ from the matrix, the locks and templates/, or one cell's build context.

    CELL is a cell's name or a glob; all cells without one. Without CELL, the Dockerfiles and
    locks of cells that no longer exist are removed.

    Exit 0: written, or with --check nothing differs; 1: files differ; 2: wrong usage.
    """
    mirror, output = options.mirror, options.output
    if (mirror is None) != (output is None):
        message = "--mirror and --output go together"
        raise ConfigError(message, fix="give both for a build context, or neither for images/")
    if options.check and output is not None:
        message = "--check and --output exclude each other"
        raise ConfigError(message, fix="give one of them")
    shipped = options.check or output is not None
    directory = options.images_dir or (data_path("images") if shipped else own_images())
    specs, all_cells = _specs(settings, options.selectors, directory), not options.selectors
    if mirror is not None and output is not None:
        _context(specs, mirror, output, settings)
    elif options.check:
        _check(specs, directory, options, all_cells=all_cells)
    else:
        _render(specs, directory, options, settings)


def _specs(settings: Settings, selectors: tuple[str, ...], images_dir: Path) -> list[ImageSpec]:
    from envcheck.matrix.file.load import load

    matrix = load(settings.matrix)
    return [
        spec
        for cell in select(matrix, selectors)
        for arch in matrix.archs(cell)
        for spec in load_specs(matrix, cell, images_dir=images_dir, arch=arch)
    ]


def _unlocked(specs: list[ImageSpec]) -> list[str]:
    return sorted({str(spec.cell) for spec in specs if not spec.locks})


def _check(specs: list[ImageSpec], images_dir: Path, options: RenderImagesOptions, *, all_cells: bool) -> None:
    """Compare. Every cell of `specs` must have locks, but a directory of the user's own may hold some cells only."""
    unlocked = _unlocked(specs) if options.images_dir is None or not all_cells else []
    rendered = render_cells(spec for spec in specs if spec.locks)
    cells = {str(spec.cell) for spec in specs if spec.locks}
    for cell in unlocked:
        click.echo(f"missing: {options.shown}/{cell} has no lock; run `envcheck lock {cell}{options.where}`")
    differences = [d for d in drift(images_dir, rendered) if all_cells or d.path.partition("/")[0] in cells]
    for difference in differences:
        click.echo(f"{difference.kind}: {options.shown}/{difference.path}")
    if differences:
        count = f"{len(differences)} of {counted(len(rendered), 'file')} differ"
        click.echo(f"{count}; run `envcheck render{options.where}` and commit what it writes")
    if differences or unlocked:
        raise SystemExit(1)
    click.echo(f"{counted(len(rendered), 'file')} in {counted(len(cells), 'cell')} are up to date")


def _render(specs: list[ImageSpec], images_dir: Path, options: RenderImagesOptions, settings: Settings) -> None:
    from envcheck.images.dockerfile import write

    unlocked, all_cells = _unlocked(specs), not options.selectors
    if unlocked and not all_cells:
        message = f"{options.shown}/{unlocked[0]} has no lock"
        raise ConfigError(message, fix=f"run `envcheck lock {unlocked[0]}{options.where}`")
    if unlocked:
        few = ", ".join(unlocked[:_NAMED]) + (" …" if unlocked[_NAMED:] else "")
        lacking = f"{counted(len(unlocked), 'cell')} without a lock, so nothing to render: {few}"
        click.echo(f"{lacking} (run `envcheck lock{options.where}`)", err=True)
    rendered = render_cells(spec for spec in specs if spec.locks)
    changed = write(images_dir, rendered)
    removed = remove_orphans(images_dir, rendered) if all_cells else []
    if not settings.quiet:
        for path in changed:
            click.echo(f"wrote {options.shown}/{path}")
        for path in removed:
            click.echo(f"removed {options.shown}/{path}")
    click.echo(f"{len(changed)} of {counted(len(rendered), 'file')} written, {len(removed)} removed")


def _context(specs: list[ImageSpec], mirror: str, output: Path, settings: Settings) -> None:
    from envcheck.images.build_context import write
    from envcheck.mirrors.profiles.load import load

    cells = {spec.cell for spec in specs}
    if len(cells) != 1:
        message = f"--output takes one cell, and {len(cells)} are selected"
        raise ConfigError(message, fix="name one cell")
    arch = architecture("auto")
    specs = [spec for spec in specs if spec.arch == arch]
    if not specs:
        message = f"{next(iter(cells))} is not published for {arch}, and a context holds uv of this machine"
        raise ConfigError(message, fix="take another cell, or write it on a machine that the cell is published for")
    context = write(specs, load(mirror), output, matrix=settings.matrix)
    secrets = "".join(f" --secret id={name},src={path}" for name, path in context.secrets.items())
    host = " --network host" if context.network == "host" else ""
    carried = [group for group, all_there in context.carried.items() if all_there]
    if not settings.quiet:
        click.echo(f"base {context.base}; carried whole: {', '.join(carried) or 'no group'}; network {context.network}")
    for spec in sorted(specs, key=lambda each: each.target == "runtime"):
        target = f"--target {spec.target}"
        click.echo(f"docker build{host}{secrets} {target} -t {tags.full(tags.REPOSITORY, spec)} {output}")
