"""Which wheels a cell's locks name, and through which mirror a command fetches them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import NamedTuple

import click
from click.core import ParameterSource

from envcheck.cli import Settings
from envcheck.cli.options import architecture
from envcheck.data import data_path
from envcheck.images.lockfile import Lock, read_locks
from envcheck.images.spec import no_lock, select, select_one
from envcheck.images.targets import groups_of
from envcheck.matrix.file.load import load as load_matrix
from envcheck.mirrors import probe
from envcheck.mirrors.index import LockedPackage
from envcheck.mirrors.profiles import model
from envcheck.mirrors.profiles.load import AUTO, load
from envcheck.mirrors.profiles.model import Profile


class CellLocks(NamedTuple):
    """Locks whose files are fetched together, and the Python that their wheels are for, where a cell names it."""

    locks: list[Lock]
    python: str | None


def locked_cells(settings: Settings, selector: str, *, one: bool) -> list[CellLocks]:
    """Return the locks for this machine of each cell that the selector matches; `one` refuses several cells."""
    matrix = load_matrix(settings.matrix)
    cells = [select_one(matrix, selector, "probe for")] if one else select(matrix, [selector])
    arch, groups = architecture("auto"), groups_of("runtime")
    locked = [CellLocks(read_locks(data_path("images") / str(cell), groups, arch), cell.python) for cell in cells]
    for cell, (locks, _) in zip(cells, locked, strict=True):
        if not locks:
            raise no_lock(cell, arch)
    return locked


def locked_packages(locks: Iterable[Lock], python: str | None = None) -> list[LockedPackage]:
    """Return the packages of these locks; `python` is the one that their wheels are for."""
    return [
        LockedPackage(pin.name, tuple(pin.sha256), lock.index, pin.version, python)
        for lock in locks
        for pin in lock.pins
    ]


def profile_for(settings: Settings, mirror: str, locks: Iterable[Lock]) -> Profile:
    """Return the profile of this name; for "auto", a profile of the mirrors that pass a probe for the locks.

    Print the choice if the command line does not name it; after a probe, also why the other mirrors come later.
    """
    if mirror != AUTO:
        profile = load(mirror)
        print_mirror(settings, mirror)
        return profile
    profile, reasons = probe.choose(probe.lock_targets(locked_packages(locks)), probe.default_mirrors())
    first = {line.partition(": ")[0]: line for line in reversed(reasons)}
    if not settings.quiet:
        click.echo(f"mirror  auto: {'; '.join(first.values())}", err=True)
        for line in (line for line in reasons if line not in first.values()):
            click.echo(textwrap.fill(line, 80, initial_indent="  ", subsequent_indent="    "), err=True)
    return profile


def print_mirror(settings: Settings, mirror: str) -> None:
    """Print the mirror and where it was chosen, if the command line does not name it."""
    context = click.get_current_context(silent=True)
    if mirror == "user":
        name = model.read_choice()
        text = f"{name}: `envcheck mirror use` chose it" if name else "none chosen: each client uses its own default"
    elif context is not None and context.get_parameter_source("mirror") is ParameterSource.ENVIRONMENT:
        text = f"{mirror}: the environment names it"
    else:
        return
    if not settings.quiet:
        click.echo(f"mirror  {text}", err=True)
