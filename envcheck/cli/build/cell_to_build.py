"""The cell that `envcheck build` builds, and the lock that is made first where it has none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from envcheck.cli import Settings
from envcheck.cli.sources.on_top import extensions_of_target
from envcheck.data import data_path, state_path
from envcheck.errors import ConfigError
from envcheck.images import lock_on_top, lock_with_uv
from envcheck.images.dockerfile import render_dockerfile, write_locks
from envcheck.images.lockfile import Lock, read_locks
from envcheck.images.spec import ImageSpec, facts, load_spec, load_specs, make_spec, near, no_lock, select_one
from envcheck.images.targets import SHARED_GROUPS, groups_of
from envcheck.matrix.facts.model import Cell, HostArch, Matrix, Target
from envcheck.matrix.file.load import load
from envcheck.mirrors.profiles.model import Profile


def spec_to_build(settings: Settings, selector: str, target: Any, images_dir: Path | None, arch: HostArch) -> ImageSpec:
    """Return what the one cell of a selector is to be.

    The spec of a legal cell may lack locks (`lacks_lock`), unless `images_dir` says where they are: then that is a
    ConfigError. A Dockerfile that is not what is built is warned of.
    """
    matrix = load(settings.matrix)
    cell = one_cell(matrix, selector, arch)
    if images_dir is None:
        spec = _with_kept_locks(matrix, cell, target, arch)
    else:
        spec = load_spec(matrix, cell, target, images_dir=images_dir, arch=arch)
        if not spec.locks:
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
    more = kept if _shared(kept) == (_shared(shipped) or _shared(kept)) else []
    locks = {lock.group: lock for lock in [*more, *shipped]}
    if len(locks) > len(shipped):
        click.echo(f"lock    of an earlier build: {kept_locks(cell)}", err=True)
    ordered = [locks[group] for group in groups_of(target) if group in locks]
    return make_spec(matrix, cell, ordered, target=target, arch=arch)


def _shared(locks: list[Lock]) -> list[Lock]:
    return [lock for lock in locks if lock.group in SHARED_GROUPS]


def kept_locks(cell: Cell) -> Path:
    """Return where builds keep the locks that they made for a cell: the user's own directory, like images/."""
    return state_path("images", str(cell))


def refuse_without_lock(spec: ImageSpec, mirror: str) -> None:
    """Refuse what needs the lock before it is made: a probe of its files."""
    if spec.lacks_lock and mirror == "auto":
        message = f"--mirror auto probes for the files of a lock, and {spec.cell} has none yet"
        raise ConfigError(message, fix="name the mirror that the lock is made through, e.g. --mirror host")


def locked_specs(
    settings: Settings, specs: Sequence[ImageSpec], profile: Profile, images_dir: Path | None
) -> list[ImageSpec]:
    """Return the specs with locks; the lock that was made for one is that of the next."""
    locked: list[ImageSpec] = []
    for given in specs:
        spec = given
        if spec.lacks_lock and locked:
            spec = spec_to_build(settings, str(spec.cell), spec.target, images_dir, spec.arch)
        locked.append(lock_first(settings, spec, profile))
    return locked


def lock_first(settings: Settings, spec: ImageSpec, profile: Profile) -> ImageSpec:
    """Return the spec with locks: those that it lacks are made, kept and said to be new."""
    if not spec.lacks_lock:
        return spec
    matrix, cell, arch = load(settings.matrix), spec.cell, spec.arch
    lacks = f"no lock of its target {spec.target}" if spec.locks else "no lock"
    click.echo(f"lock    {cell} has {lacks}: made through mirror profile {profile.name}", err=True)
    shared = _shared(spec.locks) or lock_with_uv.lock_cell(matrix, cell, profile, arch)
    extensions = extensions_of_target(matrix, spec)
    own = lock_on_top.lock_target(matrix, cell, spec.target, shared, profile, arch, extensions=extensions)
    locks = [*shared, *own]
    locked = make_spec(matrix, cell, locks, target=spec.target, arch=arch, where=str(kept_locks(cell)))
    kept = read_locks(kept_locks(cell), arch=arch)
    others = kept if _shared(kept) == _shared(locks) else []
    write_locks(kept_locks(cell).parent, cell, [*{lock.group: lock for lock in [*others, *locks]}.values()], arch)
    click.echo("lock    its hashes are new: what the mirror said is trusted from now on (trust on first use)", err=True)
    click.echo(f"lock    kept in {kept_locks(cell)}: later builds use it", err=True)
    return locked


def destination(spec: ImageSpec, output: Path | None) -> Path:
    """Return where an environment goes: a directory of its own for each target and each set of packages on top."""
    plain = spec.target == "runtime" and not spec.on_top
    return output or state_path("venvs", str(spec.cell) if plain else f"torch{spec.tag}")


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
