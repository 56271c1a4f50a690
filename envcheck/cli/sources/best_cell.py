"""The published cell to build on this machine: the newest one whose bytes the mirrors have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import click

from envcheck.cli import Settings
from envcheck.cli.shared.this_node import active_python, fill
from envcheck.cli.sources.fetch_request import profile_client
from envcheck.cli.sources.mirror_selection import AUTO
from envcheck.errors import NotFoundError, NothingLegalError, UnavailableError
from envcheck.images.known_wheels import bytes_to_fetch
from envcheck.images.lockfile import Lock
from envcheck.images.spec import load_spec
from envcheck.matrix.facts.model import Cell, HostArch, Matrix
from envcheck.matrix.file.load import load
from envcheck.matrix.resolver.resolve import Query, Resolution, resolve
from envcheck.mirrors.profiles.load import load as profile
from envcheck.mirrors.profiles.model import Profile
from envcheck.node.collect import identify


class BestCell(NamedTuple):
    """A cell, and why it is not the best that resolve names; None where it is."""

    cell: Cell
    why: str | None = None


def cell_for_this_machine(settings: Settings, mirror: str) -> str:
    """Return the name of the published cell to build here through this mirror, and say which it is and why."""
    matrix = load(settings.matrix)
    node = fill(matrix, Query(), identify(), active_python())
    answer = resolve(matrix, node.query, read_here=node.read, notes=node.notes)
    cells = published_here(matrix, [answer, resolve(matrix, node.query.replace(python=None))])
    if answer.published is None:
        message = "no published cell runs on this machine"
        raise NothingLegalError(message, fix="`envcheck resolve` says why, `envcheck images` what is published")
    best = BestCell(cells[0]) if mirror == AUTO else newest_available(matrix, cells, profile(mirror), answer.arch)
    click.echo(f"cell    {best.cell}: {best.why or 'the best published one for this machine'}", err=True)
    return str(best.cell)


def published_here(matrix: Matrix, answers: Sequence[Resolution]) -> list[Cell]:
    """Return the published cells that run here, best first.

    Where these are CPU cells, the default builds of the same torches follow: they run on a CPU too.
    """
    arch = answers[0].arch
    published = {str(cell): cell for cell in matrix.cells() if arch in matrix.archs(cell)}
    named = [answer.published for answer in answers] + [row.cell for answer in answers for row in answer.ranked]
    legal = [*dict.fromkeys(published[name] for name in named if name in published)]
    return [*legal, *(cell for first in legal if first.variant == "cpu" for cell in _defaults(matrix, first, arch))]


def _defaults(matrix: Matrix, cell: Cell, arch: HostArch) -> Iterator[Cell]:
    """Yield the published cells of the same torch in the variant that the Python index has, this Python's first."""
    release = matrix.release(cell.torch)
    default = release.pypi.get(arch) if release else None
    same = [c for c in matrix.cells() if c.torch == cell.torch and c.variant == default and arch in matrix.archs(c)]
    yield from sorted(same, key=lambda other: other.python != cell.python)


def newest_available(matrix: Matrix, cells: Sequence[Cell], profile: Profile, arch: HostArch = "x86_64") -> BestCell:
    """Return the first of the cells whose torch the profile has; the first of all where none is found."""
    client, silent = profile_client(profile, 8), set[str]()
    for cell in dict.fromkeys(cells):
        locks = load_spec(matrix, cell, arch=arch).locks
        torch = [lock for lock in locks if lock.group == "torch"]
        try:
            bytes_to_fetch(torch, cell.python, profile, None if silent & {lock.index for lock in torch} else client)
        except NotFoundError:
            continue
        except UnavailableError:
            silent |= {lock.index for lock in torch}
            continue
        if torch:
            return BestCell(cell, _why(cell, cells[0], profile, locks))
    return BestCell(cells[0])


def _why(cell: Cell, best: Cell, profile: Profile, locks: list[Lock]) -> str | None:
    if cell == best:
        return None
    if cell.variant == best.variant:
        return f"the newest published one that mirror profile {profile.name} has; it does not have {best}"
    lacks = f"mirror profile {profile.name} has no CPU wheel of torch"
    remedy = ", unless --mirror host or a profile names an index that has it" if profile.name == "none" else ""
    return f"{lacks}; this CUDA build runs on a CPU too, {_size(cell, locks, profile)}{remedy}"


def _size(cell: Cell, locks: list[Lock], profile: Profile) -> str:
    try:
        size = bytes_to_fetch(locks, cell.python, profile, profile_client(profile, 8))
    except UnavailableError:
        size = None
    return "of unknown size" if size is None else f"{size / 1e9:.1f} GB to fetch"
