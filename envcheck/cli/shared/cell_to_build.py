"""The cell that `envcheck build` builds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from envcheck.cli import Settings
    from envcheck.images.spec import ImageSpec
    from envcheck.matrix.facts.model import Matrix


def spec_to_build(settings: Settings, selector: str | None, target: Any, images_dir: Path | None) -> ImageSpec:
    """Return what the one cell of a selector is to be; without a selector, the published cell for this machine.

    A cell without a whole lock is a ConfigError; a Dockerfile that is not what is built is warned of.
    """
    from envcheck.errors import ConfigError
    from envcheck.images.spec import load_spec, select
    from envcheck.matrix.file.load import load

    matrix = load(settings.matrix)
    cells = select(matrix, [selector or _published(matrix)])
    if len(cells) != 1:
        message = f"{selector!r} names {len(cells)} cells"
        raise ConfigError(message, fix=f"build one at a time, e.g. {cells[0]}")
    spec = load_spec(matrix, cells[0], target, images_dir=images_dir)
    if not spec.locks:
        message = f"{spec.cell} has no lock"
        raise ConfigError(message, fix=f"run `envcheck lock {spec.cell}` where its index can be reached")
    _warn_of_an_edit(matrix, spec, images_dir)
    return spec


def _published(matrix: Matrix) -> str:
    """Return the published cell that `envcheck resolve` names for this machine, and say that it is built."""
    from envcheck.cli.shared.this_node import active_python, fill
    from envcheck.errors import NothingLegalError
    from envcheck.matrix.resolver.resolve import Query, resolve
    from envcheck.node.collect import identify

    node = fill(matrix, Query(), identify(), active_python())
    answer = resolve(matrix, node.query, read_here=node.read, notes=node.notes)
    if answer.published is None:
        message = "no published cell runs on this machine"
        raise NothingLegalError(message, fix="`envcheck resolve` says why, `envcheck images` what is published")
    click.echo(f"cell    {answer.published}: the best published one for this machine", err=True)
    return answer.published


def _warn_of_an_edit(matrix: Matrix, spec: ImageSpec, images_dir: Path | None) -> None:
    """Warn where the cell's Dockerfile is not what is built: a build renders its own from templates and locks."""
    from envcheck.data import data_path
    from envcheck.images.render.dockerfile import render_dockerfile
    from envcheck.images.spec import load_specs

    path = (images_dir or data_path("images")) / str(spec.cell) / "Dockerfile"
    specs = load_specs(matrix, spec.cell, images_dir=images_dir)
    if path.exists() and path.read_bytes() != render_dockerfile(*specs).encode():
        warning = "is edited or out of date and is not what this build uses; put changes into templates/ or matrix.yaml"
        click.echo(f"envcheck: warning: {path} {warning}, then run `envcheck render`", err=True)
