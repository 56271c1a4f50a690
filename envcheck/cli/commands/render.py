"""`envcheck render`."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import click

from envcheck.cli import Settings
from envcheck.cli.options import Argument, ImagesDirectory, Option, architecture, command_with, complete_cells
from envcheck.cli.shared.process import say
from envcheck.counting import counted
from envcheck.data import data_path, own_images
from envcheck.errors import ConfigError, refuse
from envcheck.images import build_context, tags
from envcheck.images.dockerfile import drift, remove_orphans, render_cells
from envcheck.images.dockerfile import write as write_files
from envcheck.images.formats import bake_of_checkout
from envcheck.images.spec import ImageSpec, load_specs, select
from envcheck.matrix.file.load import load
from envcheck.mirrors.profiles.load import load as load_profile

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


@command_with(RenderImagesOptions, epilog=_EPILOG)
def command(options: RenderImagesOptions, settings: Settings) -> int:
    """Write images/<cell>/ from the matrix, the locks and templates/, or one cell's build context.

    CELL is a cell's name or a glob; all cells without one. Without CELL, the Dockerfiles and
    locks of cells that no longer exist are removed.

    Exit 0: written, or with --check nothing differs; 1: files differ; 2: wrong usage.
    """
    mirror, output = options.mirror, options.output
    if (mirror is None) != (output is None):
        refuse("--mirror and --output go together", "give both for a build context, or neither for images/")
    if options.check and output is not None:
        refuse("--check and --output exclude each other", "give one of them")
    shipped = options.check or output is not None
    directory = options.images_dir or (data_path("images") if shipped else own_images())
    matrix = load(settings.matrix)
    specs = [
        spec
        for cell in select(matrix, options.selectors)
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
    files = render_cells(locked)
    return (
        files if options.selectors or options.images_dir else {**files, "bake.json": bake_of_checkout(locked).encode()}
    )


def _check(specs: list[ImageSpec], images_dir: Path, options: RenderImagesOptions, _settings: Settings) -> int:
    """Compare. Every cell of `specs` must have locks, but a directory of the user's own may hold some cells only."""
    everything, shown = not options.selectors, options.images_dir or "images"
    rendered = _files(specs, options)
    cells = {str(spec.cell) for spec in specs if spec.locks}
    lines = [] if options.images_dir and everything else _without_lock(specs, options)
    lines = [f"missing: {line}" for line in lines]
    found = [one for one in drift(images_dir, rendered) if everything or one.path.partition("/")[0] in cells]
    lines += [f"{one.kind}: {shown}/{one.path}" for one in found]
    if found:
        count = f"{len(found)} of {counted(len(rendered), 'file')} differ"
        lines.append(f"{count}; run `envcheck render` and commit what it writes")
    if not lines:
        click.echo(f"{counted(len(rendered), 'file')} in {counted(len(cells), 'cell')} are up to date")
    for line in lines:
        click.echo(line)
    return int(bool(lines))


def _render(specs: list[ImageSpec], images_dir: Path, options: RenderImagesOptions, settings: Settings) -> int:
    lacking, shown = _without_lock(specs, options), options.images_dir or "images"
    if lacking and options.selectors:
        message, _, fix = lacking[0].partition("; ")
        raise ConfigError(message, fix=fix)
    if lacking:
        say(f"{counted(len(lacking), 'cell')} without a lock, so nothing to render: {lacking[0]}")
    rendered = _files(specs, options)
    changed = write_files(images_dir, rendered)
    removed = remove_orphans(images_dir, rendered) if not options.selectors else []
    for path in [] if settings.quiet else changed:
        click.echo(f"wrote {shown}/{path}")
    for path in [] if settings.quiet else removed:
        click.echo(f"removed {shown}/{path}")
    click.echo(f"{len(changed)} of {counted(len(rendered), 'file')} written, {len(removed)} removed")
    return 0


def _context(specs: list[ImageSpec], mirror: str, output: Path, settings: Settings) -> None:
    cells = {spec.cell for spec in specs}
    if len(cells) != 1:
        message = f"--output takes one cell, and {len(cells)} are selected"
        raise ConfigError(message, fix="name one cell")
    arch = architecture("auto")
    specs = [spec for spec in specs if spec.arch == arch]
    if not specs:
        message = f"{next(iter(cells))} is not published for {arch}, and a context holds uv of this machine"
        raise ConfigError(message, fix="take another cell, or write it on a machine that the cell is published for")
    context = build_context.write(specs, load_profile(mirror), output, matrix=settings.matrix)
    secrets = "".join(f" --secret id={name},src={path}" for name, path in context.secrets.items())
    host = " --network host" if context.network == "host" else ""
    if not settings.quiet:
        carried = ", ".join(group for group, whole in context.carried.items() if whole) or "no group"
        click.echo(f"base {context.base}; carried whole: {carried}; network {context.network}")
    for spec in sorted(specs, key=lambda each: each.target == "runtime"):
        target = f"--target {spec.target}"
        click.echo(f"docker build{host}{secrets} {target} -t {tags.REPOSITORY}:{spec.tag} {output}")
