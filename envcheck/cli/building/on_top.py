"""What a user puts on top of a cell: planned from the request, and its wheels and lock made before the build."""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec

from envcheck import safe_files
from envcheck.cli import Settings
from envcheck.cli.building.cell_to_build import lock_first, spec_to_build
from envcheck.cli.building.pinned import PinnedExtensions, known_extensions, pinned_to_fit
from envcheck.cli.building.request import BuildRequest
from envcheck.cli.options import architecture
from envcheck.cli.sources import disk_errors, transfer_options
from envcheck.counting import counted
from envcheck.data import state_path
from envcheck.errors import refuse
from envcheck.images import source_recipe as recipe
from envcheck.images.lock_on_top import contradiction, excluded, lock_user_packages
from envcheck.images.lockfile import MADE_ANEW, format_lock, read_kept
from envcheck.images.source_compile import Compiler, wheel_of
from envcheck.images.source_recipe import ExtensionBuild, capabilities
from envcheck.images.spec import ImageSpec, with_user_packages
from envcheck.images.wheels import StoredWheel, fetch_new, sha256, viewed
from envcheck.matrix.facts.lookup import Facts
from envcheck.matrix.facts.model import Matrix
from envcheck.mirrors.fetch.request import TransferOptions
from envcheck.mirrors.index import parse_file_name
from envcheck.mirrors.profiles.model import CLIENT_DEFAULT, Index, Profile
from envcheck.mirrors.store.objects import Store


@dataclass(frozen=True, kw_only=True)
class OnTop:
    """What a user puts on top of a target: what an index has, wheels that are fetched, and sources.

    Each source is compiled on `devel`, for its compute capabilities in `gpus`. `native` are the names of extensions of
    torch, whose lock is apart. `keep`: a new lock is kept for the next build.
    """

    pinned: PinnedExtensions
    devel: ImageSpec
    gpus: list[tuple[str, ...]]
    native: frozenset[str]
    keep: bool

    def lacking(self, store: Store) -> dict[str, list[str]]:
        """Return what a build would first compile and fetch, and what it installs then; nothing if all is there."""
        there = all(wheel.sha256 and store.has(wheel.sha256) for wheel in self.pinned.files)
        for (name, version), gpus in zip(self.pinned.sources, self.gpus, strict=True):
            known = recipe.pinned(self.devel, name, version)
            build = ExtensionBuild(sdist=known, devel=self.devel, gpus=gpus) if known else None
            there = there and bool(build and not self.devel.lacks_lock and recipe.kept_wheel(store, build))
        names = [f"{name} {version}" for name, version in self.pinned.sources]
        urls = [file.urls[0] for file in self.pinned.files]
        return {} if there else {"compile": names, "fetch": urls, "with": self.pinned.requirements}


def planned(request: BuildRequest, matrix: Matrix, spec: ImageSpec) -> OnTop:
    """Return what comes on top of a spec that has locks. Raises ConfigError for what cannot fit, or not be compiled."""
    gpus, known = request.options.gpus, known_extensions(request.options.extensions)
    pinned = pinned_to_fit(matrix, spec, request.requirements, known, gpus, request.hashes)
    devel = spec
    for name, version in pinned.sources[:1]:
        devel = spec_to_build(matrix, str(spec.cell), "devel", request.options.images_dir, spec.arch)
        if devel.arch != architecture("auto"):  # emulated, one file of a real one takes an hour
            message = f"{name} {version} must be compiled, which a machine of {devel.arch} can do"
            refuse(message, "build there, or add its wheel to your own index")
    facts = Facts(matrix)
    return OnTop(
        pinned=pinned,
        devel=devel,
        gpus=[capabilities(facts, gpus, devel.cuda, f"{name} {version}") for name, version in pinned.sources],
        native=frozenset(name for row in known.extensions for name in (row.name, *row.aliases)),
        keep=not request.options.dry_run,
    )


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
