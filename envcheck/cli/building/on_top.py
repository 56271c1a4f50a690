"""What a build makes before it builds: locks of a cell and its target, and wheels and a lock of what is on top."""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click
import msgspec

from envcheck import safe_files
from envcheck.cli import Settings
from envcheck.cli.building.cell_to_build import kept_locks, shared_locks
from envcheck.cli.building.plan import OnTop, extensions_of_target
from envcheck.cli.sources import disk_errors, transfer_options
from envcheck.counting import counted
from envcheck.data import state_path
from envcheck.errors import refuse
from envcheck.images import lock_on_top, lock_with_uv
from envcheck.images import source_recipe as recipe
from envcheck.images.dockerfile import write_locks
from envcheck.images.lock_on_top import contradiction, excluded, lock_user_packages
from envcheck.images.lockfile import MADE_ANEW, format_lock, read_kept, read_locks
from envcheck.images.source_compile import Compiler, wheel_of
from envcheck.images.source_recipe import ExtensionBuild
from envcheck.images.spec import ImageSpec, make_spec, with_user_packages
from envcheck.images.wheels import StoredWheel, fetch_new, sha256, viewed
from envcheck.matrix.facts.lookup import Facts
from envcheck.matrix.facts.model import Matrix
from envcheck.mirrors.fetch.request import TransferOptions
from envcheck.mirrors.index import parse_file_name
from envcheck.mirrors.profiles.model import CLIENT_DEFAULT, Index, Profile
from envcheck.mirrors.store.objects import Store


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


def with_packages(spec: ImageSpec, top: OnTop, profile: Profile, wheels: Sequence[Path]) -> ImageSpec:
    """Return the spec with these packages on top, of the kept lock where there is one; say which lock it is.

    `wheels` are files beside those of the index. Native extensions get a lock of their own.
    """
    files = [parse_file_name(wheel.name) for wheel in wheels]
    requirements = [*top.pinned.requirements, *(f"{name}=={version}" for name, version, _ in files)]
    if not requirements:
        return spec
    digests = sorted(map(sha256, wheels))
    wanted = json.dumps([spec.tag, spec.promises["lock"], sorted(requirements), *([digests] if digests else [])])
    path = state_path("locks-on-top", f"{spec.tag}-{hashlib.sha256(wanted.encode()).hexdigest()[:16]}.lock")
    if path.is_file():
        lock, origin = read_kept(path, "user"), "kept from an earlier build"
        if wrong := contradiction(spec, lock, requirements):
            refuse(f"{path} {wrong}", MADE_ANEW)
    else:
        made = lock_user_packages(spec, requirements, profile, wheels)
        if made is None:
            _say_excluded(spec, requirements)
            held = [line for line in requirements if line not in excluded(spec, requirements)]
            why = f": {spec.tag} holds {', '.join(held)}" if held else ""
            click.echo(f"with    nothing to add{why}", err=True)
            return spec
        lock, origin = made, "locked now: their hashes are what the mirror says today"
        if top.keep:
            path.parent.mkdir(parents=True, exist_ok=True)
            safe_files.replace(path, format_lock(made, f"{spec.tag}, on top: {', '.join(requirements)}").encode())
    where = f"; lock: {path}" if path.is_file() else ", not kept"
    click.echo(f"with    {counted(len(lock.pins), 'package')} on top, {origin}{where}", err=True)
    with_them = with_user_packages(spec, lock, top.native)
    _say_excluded(with_them, requirements)
    return with_them


def _say_excluded(spec: ImageSpec, requirements: Sequence[str]) -> None:
    for line in excluded(spec, requirements):
        click.echo(f"with    {line} is left out: its marker excludes this Python or platform", err=True)


@contextlib.contextmanager
def put_on_top(
    matrix: Matrix, top: OnTop, spec: ImageSpec, store: Store, compiler: Compiler, settings: Settings
) -> Iterator[tuple[ImageSpec, Profile]]:
    """Give the spec with what comes on top, and the profile that has its wheels too; they go with the block.

    Wheels are compiled or fetched first.
    """
    profile, files = compiler.profile, list[Path]()
    with contextlib.ExitStack() as stack:
        if top.pinned.sources or top.pinned.files:
            with disk_errors(store.root), store.held():
                with transfer_options(settings, profile) as means:
                    wheels = [*_compiled(matrix, top, store, compiler, means), *_fetched(top, store, means)]
                folder = stack.enter_context(viewed(store, wheels))
            # A directory of this machine: its hash alone says that a wheel is taken.
            indexes = profile.pypi or ([] if profile.closed else [Index(url=CLIENT_DEFAULT)])
            pypi = [*indexes, Index(url=str(folder), kind="find-links")]
            profile, files = msgspec.structs.replace(profile, pypi=pypi), sorted(folder.glob("*.whl"))
        yield with_packages(spec, top, profile, files), profile


def _compiled(
    matrix: Matrix, top: OnTop, store: Store, compiler: Compiler, means: Callable[[str], TransferOptions]
) -> Iterator[StoredWheel]:
    facts = Facts(matrix)
    devel = lock_first(matrix, top.devel, compiler.profile) if top.pinned.sources else top.devel
    for (name, version), gpus in zip(top.pinned.sources, top.gpus, strict=True):
        source = recipe.bring(store, devel, name, version, compiler.profile, means)
        build = ExtensionBuild(sdist=source, devel=devel, gpus=gpus)
        wheel, new = wheel_of(build, store, facts, compiler, means)
        origin = "compiled now" if new else "compiled by an earlier build"
        click.echo(f"with    {wheel.name}: {origin}, kept in {store.root}", err=True)
        yield StoredWheel(wheel.name, wheel.sha256)


def _fetched(top: OnTop, store: Store, means: Callable[[str], TransferOptions]) -> Iterator[StoredWheel]:
    for wheel in top.pinned.files:
        digest = wheel.sha256
        if not digest:
            digest, path = fetch_new(store, wheel, means(wheel.path.name).client)
            what = f"trusted on first use, sha256 {digest}, kept in {path}"
            click.echo(f"with    {wheel.path.name}: no hash on record: {what}", err=True)
        elif not store.sound(digest):
            store.put(wheel, means(wheel.path.name))
        yield StoredWheel(wheel.path.name, digest)
