"""The cell that `envcheck build` builds, and the lock that is made first where it has none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from envcheck.cli import Settings
    from envcheck.images.lockfile import Lock
    from envcheck.images.spec import ImageSpec
    from envcheck.matrix.facts.model import Cell, HostArch, Matrix, Target
    from envcheck.mirrors.profiles.model import Profile


def spec_to_build(settings: Settings, selector: str, target: Any, images_dir: Path | None, arch: HostArch) -> ImageSpec:
    """Return what the one cell of a selector is to be.

    The spec of a legal cell may lack locks (`lacks_lock`), unless `images_dir` says where they are: then that is a
    ConfigError. A Dockerfile that is not what is built is warned of.
    """
    from envcheck.images.spec import load_spec, no_lock
    from envcheck.matrix.file.load import load

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
    from envcheck.errors import ConfigError
    from envcheck.images.spec import facts, near, select_one
    from envcheck.matrix.facts.model import Cell

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
    from envcheck.data import data_path
    from envcheck.images.lockfile import read_locks
    from envcheck.images.spec import load_spec, make_spec
    from envcheck.images.targets import groups_of

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
    from envcheck.images.targets import SHARED_GROUPS

    return [lock for lock in locks if lock.group in SHARED_GROUPS]


def kept_locks(cell: Cell) -> Path:
    """Return where builds keep the locks that they made for a cell: the user's own directory, like images/."""
    from envcheck.data import state_path

    return state_path("images", str(cell))


def refuse_without_lock(spec: ImageSpec, mirror: str, *, bake: bool) -> None:
    """Refuse what needs the lock before it is made: a probe of its files, and a plan for another program."""
    from envcheck.errors import ConfigError

    if not spec.lacks_lock:
        return
    if mirror == "auto":
        message = f"--mirror auto probes for the files of a lock, and {spec.cell} has none yet"
        raise ConfigError(message, fix="name the mirror that the lock is made through, e.g. --mirror host")
    if bake:
        message = f"--bake is the plan of a locked cell, and {spec.cell} has no lock yet"
        raise ConfigError(message, fix="run `envcheck build` without it once: it makes the lock")


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
    from envcheck.cli.sources.extensions_of_cell import extensions_of_target
    from envcheck.images.dockerfile import write_locks
    from envcheck.images.lock_on_top import lock_target
    from envcheck.images.lock_with_uv import MadeLocks, make_locks
    from envcheck.images.lockfile import read_locks
    from envcheck.images.spec import make_spec
    from envcheck.matrix.file.load import load

    if not spec.lacks_lock:
        return spec
    matrix, cell, arch = load(settings.matrix), spec.cell, spec.arch
    lacks = f"no lock of its target {spec.target}" if spec.locks else "no lock"
    click.echo(f"lock    {cell} has {lacks}: made through mirror profile {profile.name}", err=True)
    made = MadeLocks(_shared(spec.locks)) if spec.locks else make_locks(matrix, cell, profile, arch)
    extensions = extensions_of_target(matrix, spec)
    own = lock_target(matrix, cell, spec.target, made.locks, profile, arch, extensions=extensions)
    locks = [*made.locks, *own]
    locked = make_spec(matrix, cell, locks, target=spec.target, arch=arch, where=str(kept_locks(cell)))
    kept = read_locks(kept_locks(cell), arch=arch)
    others = kept if _shared(kept) == _shared(locks) else []
    write_locks(kept_locks(cell).parent, cell, [*{lock.group: lock for lock in [*others, *locks]}.values()], arch)
    news = made.origin() or ["its hashes are new: what the mirror said is trusted from now on (trust on first use)"]
    for line in [*news, f"kept in {kept_locks(cell)}: later builds use it"]:
        click.echo(f"lock    {line}", err=True)
    return locked


def destination(spec: ImageSpec, output: Path | None) -> Path:
    """Return where an environment goes: a directory of its own for each target and each set of packages on top."""
    from envcheck.data import state_path

    plain = spec.target == "runtime" and not spec.on_top
    return output or state_path("venvs", str(spec.cell) if plain else f"torch{spec.tag}")


def _warn_of_an_edit(matrix: Matrix, spec: ImageSpec, images_dir: Path | None) -> None:
    """Warn where the cell's Dockerfile is not what is built: a build renders its own from templates and locks."""
    from envcheck.data import data_path
    from envcheck.errors import ConfigError
    from envcheck.images.dockerfile import render_dockerfile
    from envcheck.images.spec import load_specs

    path = (images_dir or data_path("images")) / str(spec.cell) / "Dockerfile"
    try:
        specs = load_specs(matrix, spec.cell, images_dir=images_dir)
    except ConfigError:  # another target of the cell lacks its lock: there is nothing to compare with
        return
    if path.exists() and path.read_bytes() != render_dockerfile(*specs).encode():
        warning = "is edited or out of date and is not what this build uses; put changes into templates/ or matrix.yaml"
        click.echo(f"envcheck: warning: {path} {warning}, then run `envcheck render`", err=True)


def refuse_ignored(options: Any, engine: str) -> None:
    """Raise ConfigError for an option of `envcheck build` that this build would not read."""
    from envcheck.errors import ConfigError

    on_top = bool(options.packages or options.packages_file)
    if not on_top:
        ignored = ["--gpu"] * bool(options.gpus) + ["--extensions"] * bool(options.extensions)
        if ignored:
            message = f"{ignored[0]} is for the packages of --with, and there are none"
            raise ConfigError(message, fix=f"add --with, or leave {ignored[0]} out")
    # The wheels of extensions that --with compiles or fetches are kept in the store, too.
    if options.store is not None and not options.prefetch and not on_top and not from_variable("store"):
        message = "--store is for --prefetch and --with"
        raise ConfigError(message, fix="add --prefetch, or leave --store out")
    if engine == "venv" and options.network == "none" and not options.prefetch and not from_variable("network"):
        message = f"--network {options.network} is for builds of images, and the engine is venv"
        raise ConfigError(message, fix="leave --network out; --prefetch builds an environment without a network")


def refuse_several(options: Any) -> None:
    """Raise ConfigError for what several targets cannot share; which engine --engine auto comes to is seen later."""
    from envcheck.errors import ConfigError
    from envcheck.images.tags import parse

    reasons = {
        "an environment is of one target, and the engine is venv": options.engine == "venv",
        "packages on top are locked for one target": bool(options.packages or options.packages_file),
        "without a network each target has a base of its own": options.prefetch or options.network == "none",
        "one TAG names one image": parse(options.tag)[1] is not None,
    }
    reason = next((reason for reason, applies in reasons.items() if applies), None)
    if reason and len(set(options.targets)) > 1:
        message = f"several --target: {reason}"
        raise ConfigError(message, fix="give one --target at a time")


def from_variable(option: str) -> bool:
    """Return whether the value of this command's option is from the environment: one for every command."""
    context = click.get_current_context(silent=True)
    return context is not None and context.get_parameter_source(option) is click.core.ParameterSource.ENVIRONMENT


def refuse_network(network: str, base: str, engine: str) -> None:
    """Refuse what asks for a network beside --prefetch; a base from a registry would, to install what it lacks."""
    from envcheck.errors import ConfigError
    from envcheck.images import engines

    if network in {"host", "default"}:
        message = f"--prefetch builds without a network, but --network is {network}"
        raise ConfigError(message, fix="leave one of them out")
    if base == "registry":
        message = "--prefetch builds without a network, but --base registry installs packages over one"
        raise ConfigError(message, fix="leave --base out: the base is then bootstrapped before the build")
    if engine != "venv":
        engines.connect(engine).demand_contexts()
