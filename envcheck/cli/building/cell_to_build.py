"""The cell that `envcheck build` builds: the one that is named, or the best published one here; and its locks."""

import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import click

from envcheck.cli.building.pinned import extensions_of_target
from envcheck.data import data_path, state_path
from envcheck.errors import ConfigError, NotFoundError, NothingLegalError, UnavailableError
from envcheck.images import lock_on_top, lock_with_uv
from envcheck.images.dockerfile import render_dockerfile, write_locks
from envcheck.images.engines.venv import find_python
from envcheck.images.lockfile import Lock, read_locks
from envcheck.images.spec import ImageSpec, facts, load_spec, load_specs, make_spec, near, no_lock, select_one
from envcheck.images.targets import SHARED_GROUPS, groups_of
from envcheck.images.wheels import bytes_to_fetch
from envcheck.matrix.facts.model import Cell, HostArch, Matrix, Target
from envcheck.matrix.resolver.resolve import Resolution
from envcheck.mirrors.net.client import hub_client
from envcheck.mirrors.profiles.model import Profile


class BestCell(NamedTuple):
    """A cell, and why it is not the best that resolve names; None where it is."""

    cell: Cell
    why: str | None = None


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


def best_cell(matrix: Matrix, answers: Sequence[Resolution], engine: str, profile: Profile | None) -> BestCell:
    """Return the first published cell whose torch the mirror has; without a profile mirrors are probed for it."""
    cells = buildable(matrix, answers, engine)
    return newest_available(matrix, cells, profile, answers[0].arch) if profile else BestCell(cells[0])


def buildable(matrix: Matrix, answers: Sequence[Resolution], engine: str) -> list[Cell]:
    """Return the published cells that are legal here, best first: those with a lock whose Python this engine has.

    If any Python will do, of one torch and variant that of this machine's release comes first: its base can be
    bootstrapped if no registry answers.
    """
    cells = published_here(matrix, answers)
    if not cells:
        message = "no published cell is legal on this machine"
        raise NothingLegalError(message, fix="`envcheck resolve` says why, `envcheck images` what is published")
    builds = [*dict.fromkeys((cell.torch, cell.variant) for cell in cells)]
    if answers[0].query.python is None:
        own = _own_suite()
        suites = {cell: getattr(matrix.base(cell.python), "suite", None) for cell in cells}
        cells.sort(key=lambda cell: (builds.index((cell.torch, cell.variant)), suites[cell] != own))
    pythons = {python for python in {cell.python for cell in cells} if engine != "venv" or _has_python(python)}
    usable = [c for c in cells if c.python in pythons and load_spec(matrix, c, arch=answers[0].arch).locks]
    if not usable:
        best = [cell for cell in cells if (cell.torch, cell.variant) == builds[0]]
        message = f"{best[0]} and the same cell for other Pythons cannot be built here"
        fix = f"install one of Python {', '.join(cell.python for cell in best)}, or use a container engine"
        raise UnavailableError(message, fix=fix)
    return usable


def _own_suite() -> str | None:
    try:
        return platform.freedesktop_os_release().get("VERSION_CODENAME")
    except OSError:
        return None


def _has_python(version: str) -> bool:
    try:
        find_python(version)
    except UnavailableError:
        return False
    return True


def newest_available(matrix: Matrix, cells: Sequence[Cell], profile: Profile, arch: HostArch = "x86_64") -> BestCell:
    """Return the first of the cells whose torch the profile has; the first of all where none is found."""
    client, silent = hub_client(profile, connections=8), set[str]()
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
    try:
        size = bytes_to_fetch(locks, cell.python, profile, hub_client(profile, connections=8))
    except UnavailableError:
        size = None
    shown = "of unknown size" if size is None else f"{size / 1e9:.1f} GB to fetch"
    remedy = ", unless --mirror host or a profile names an index that has it" if profile.name == "none" else ""
    lacks = f"mirror profile {profile.name} has no CPU wheel of torch"
    return f"{lacks}; this CUDA build runs on a CPU too, {shown}{remedy}"


def spec_to_build(matrix: Matrix, selector: str, target: Target, images_dir: Path | None, arch: HostArch) -> ImageSpec:
    """Return what the one cell of a selector is to be.

    The spec of a legal cell may lack locks (`lacks_lock`), unless `images_dir` says where they are: then that is a
    ConfigError. A Dockerfile that is not what is built is warned of.
    """
    cell = one_cell(matrix, selector, arch)
    spec = load_spec(matrix, cell, target, images_dir=images_dir, arch=arch) if images_dir else None
    spec = spec or _with_kept_locks(matrix, cell, target, arch)
    if images_dir and not spec.locks:
        raise no_lock(spec.cell, arch)
    if not spec.lacks_lock and arch == "x86_64":
        _warn_of_an_edit(matrix, spec, images_dir)
    return spec


def one_cell(matrix: Matrix, selector: str, arch: HostArch) -> Cell:
    """Return the one published cell of a selector, or the unpublished one of that name that has wheels."""
    named = Cell.parse(selector)
    if named is None or named in matrix.cells() or matrix.release(named.torch) is None:
        return select_one(matrix, selector, "build")
    try:
        facts(matrix, named, arch)
    except ConfigError as error:
        raise ConfigError(error.message, fix=f"{near(matrix, selector)} Or {error.fix}".removeprefix(" Or ")) from error
    return named


def _with_kept_locks(matrix: Matrix, cell: Cell, target: Target, arch: HostArch) -> ImageSpec:
    """Return the spec with the shipped locks; what they lack is taken from an earlier build's, where these fit."""
    load_spec(matrix, cell, arch=arch)  # refuses a directory of which some files are gone
    shipped = read_locks(data_path("images") / str(cell), groups_of(target), arch)
    kept = read_locks(kept_locks(cell), groups_of(target), arch)
    more = kept if shared_locks(kept) == (shared_locks(shipped) or shared_locks(kept)) else []
    locks = {lock.group: lock for lock in [*more, *shipped]}
    if len(locks) > len(shipped):
        click.echo(f"lock    of an earlier build: {kept_locks(cell)}", err=True)
    ordered = [locks[group] for group in groups_of(target) if group in locks]
    return make_spec(matrix, cell, ordered, target=target, arch=arch)


def shared_locks(locks: list[Lock]) -> list[Lock]:
    """Return those that all targets of a cell share."""
    return [lock for lock in locks if lock.group in SHARED_GROUPS]


def kept_locks(cell: Cell) -> Path:
    """Return where builds keep the locks that they made for a cell: the user's own directory, like images/."""
    return state_path("images", str(cell))


def _warn_of_an_edit(matrix: Matrix, spec: ImageSpec, images_dir: Path | None) -> None:
    """Warn where the cell's Dockerfile is not what is built: a build renders its own from templates and locks."""
    path = (images_dir or data_path("images")) / str(spec.cell) / "Dockerfile"
    try:
        specs = load_specs(matrix, spec.cell, images_dir=images_dir)
    except ConfigError:  # another target of the cell lacks its lock: there is nothing to compare with
        return
    if path.exists() and path.read_bytes() != render_dockerfile(*specs).encode():
        warning = "is edited or out of date and is not what this build uses; put changes into templates/ or matrix.yaml"
        click.echo(f"envcheck: warning: {path} {warning}, then run `envcheck render`", err=True)


def locked_specs(matrix: Matrix, specs: Sequence[ImageSpec], profile: Profile) -> list[ImageSpec]:
    """Return the specs with locks; the lock that was made for one is that of the next."""
    locked: list[ImageSpec] = []
    for spec in specs:
        shared = shared_locks(locked[-1].locks) if locked and not spec.locks else []
        given = make_spec(matrix, spec.cell, shared, target=spec.target, arch=spec.arch) if shared else spec
        locked.append(lock_first(matrix, given, profile))
    return locked


def lock_first(matrix: Matrix, spec: ImageSpec, profile: Profile) -> ImageSpec:
    """Return the spec with locks: those that it lacks are made, kept and said to be new."""
    if not spec.lacks_lock:
        return spec
    cell, arch = spec.cell, spec.arch
    lacks = f"no lock of its target {spec.target}" if spec.locks else "no lock"
    click.echo(f"lock    {cell} has {lacks}: made through mirror profile {profile.name}", err=True)
    shared = shared_locks(spec.locks) or lock_with_uv.lock_cell(matrix, cell, profile, arch)
    extensions = extensions_of_target(matrix, spec)
    own = lock_on_top.lock_target(matrix, cell, spec.target, shared, profile, arch, extensions=extensions)
    locks = [*shared, *own]
    locked = make_spec(matrix, cell, locks, target=spec.target, arch=arch, where=str(kept_locks(cell)))
    kept = read_locks(kept_locks(cell), arch=arch)
    others = kept if shared_locks(kept) == shared_locks(locks) else []
    write_locks(kept_locks(cell).parent, cell, [*{lock.group: lock for lock in [*others, *locks]}.values()], arch)
    click.echo("lock    its hashes are new: what the mirror said is trusted from now on (trust on first use)", err=True)
    click.echo(f"lock    kept in {kept_locks(cell)}: later builds use it", err=True)
    return locked
