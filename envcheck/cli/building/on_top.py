"""What a build locks before it builds: a cell without locks, its target, and what a user puts on top of both.

On top are native extensions in the release that fits, compiled or fetched where the index has no wheel, and packages.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import click
import msgspec
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envcheck import safe_files
from envcheck.cli import Settings
from envcheck.cli.building.cell_to_build import kept_locks, shared_locks, spec_to_build
from envcheck.cli.options import architecture
from envcheck.cli.sources import disk_errors, transfer_options
from envcheck.counting import counted
from envcheck.data import state_path
from envcheck.errors import ConfigError
from envcheck.images import lock_on_top, lock_with_uv
from envcheck.images import source_recipe as recipe
from envcheck.images.dockerfile import write_locks
from envcheck.images.lock_on_top import contradiction, excluded, lock_user_packages
from envcheck.images.lockfile import MADE_ANEW, format_lock, read_kept, read_locks
from envcheck.images.source_compile import Compiler, wheel_of
from envcheck.images.source_recipe import ExtensionBuild, capabilities
from envcheck.images.spec import ImageSpec, make_spec, with_user_packages
from envcheck.images.targets import extensions_of
from envcheck.images.wheels import StoredWheel, fetch_new, kept_hash, sha256, viewed
from envcheck.matrix.extensions import file
from envcheck.matrix.extensions.answer import ChosenExtension, ExtensionResolution, resolve_with, wanted_extensions
from envcheck.matrix.extensions.file import Extensions
from envcheck.matrix.extensions.fit import JIT, SOURCE_ONLY
from envcheck.matrix.facts.lookup import Facts
from envcheck.matrix.facts.model import Cell, HostArch, Matrix
from envcheck.matrix.resolver.query import Query
from envcheck.matrix.resolver.resolve import resolve
from envcheck.mirrors.fetch.request import TransferOptions, WantedFile
from envcheck.mirrors.index import parse_file_name
from envcheck.mirrors.profiles.model import CLIENT_DEFAULT, Index, Profile
from envcheck.mirrors.store.objects import Store


def locked_specs(
    matrix: Matrix, specs: Sequence[ImageSpec], profile: Profile, images_dir: Path | None
) -> list[ImageSpec]:
    """Return the specs with locks; the lock that was made for one is that of the next."""
    locked: list[ImageSpec] = []
    for given in specs:
        again = given.lacks_lock and locked
        spec = spec_to_build(matrix, str(given.cell), given.target, images_dir, given.arch) if again else given
        locked.append(lock_first(matrix, spec, profile))
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


class PinnedExtensions(NamedTuple):
    """Known extensions, pinned. `sources` (name, version) are compiled, `files` fetched: neither in `requirements`."""

    requirements: list[str]
    sources: list[tuple[str, str]]
    files: list[WantedFile]


def known_extensions(path: Path | None = None) -> Extensions:
    """Return the facts about extensions, those of a site's own file before those shipped. Raises ConfigError."""
    shipped = file.load()
    return file.merged(shipped, file.load(path)) if path else shipped


def answer_for_cell(
    matrix: Matrix,
    cell: Cell,
    arch: HostArch,
    requirements: Sequence[str],
    extensions: Extensions | None = None,
    gpus: Sequence[str] = (),
) -> ExtensionResolution:
    """Return which releases of these extensions fit a cell, and GPUs if some are given. Raises ConfigError."""
    extensions = extensions or known_extensions()
    query = Query(torch=f"=={cell.torch}", variant=cell.variant, python=cell.python, gpus=[*gpus], arch=arch)
    return resolve_with(matrix, extensions, resolve(matrix, query), wanted_extensions(extensions, [*requirements]))


def pinned_to_fit(
    matrix: Matrix,
    spec: ImageSpec,
    requirements: Sequence[str],
    extensions: Extensions | None = None,
    gpus: Sequence[str] = (),
    hashes: Mapping[str, str] | None = None,
) -> PinnedExtensions:
    """Return the requirements with each known extension pinned to the newest release that fits the spec's cell.

    `hashes` are the sha256 that the user gives for wheels of projects, by the name in `requirements`.

    Raises ConfigError for a hash that no file takes, and for a requirement that cannot fit: METADATA mostly lets the
    installer take it. What is not known is said.
    Requirements with extras or markers are left to the installer, and so are all on a cell without CUDA but for those
    that have no wheel and compile for the CPU.
    """
    extensions = extensions or known_extensions()
    pinned = PinnedExtensions([], [], [])
    for line in requirements:
        known = _is_extension(extensions, line, cpu=spec.cell.variant == "cpu")
        chosen = _chosen(matrix, spec, line, extensions, gpus) if known else None
        if chosen is None:
            pinned.requirements.append(_without_refused(matrix, spec, line, extensions, gpus) if known else line)
        else:
            _add(pinned, chosen, spec, line, (hashes or {}).get(canonicalize_name(Requirement(line).name)))
    for name, digest in (hashes or {}).items():
        if digest not in [file.sha256 for file in pinned.files]:
            message = f"--sha256 {name}: this build takes no wheel of {name} from its project"
            raise ConfigError(message, fix="leave it out: the lock holds what an index serves to its hash")
    return pinned


def extensions_of_target(matrix: Matrix, spec: ImageSpec) -> list[str]:
    """Return the target's native extensions, pinned to what fits. ConfigError: one fits not, or not from the index."""
    pinned = pinned_to_fit(matrix, spec, extensions_of(spec.target, spec.cuda))
    others = [*(name for name, _ in pinned.sources), *(file.path.name for file in pinned.files)]
    if others:
        message = f"{spec.cell}, target {spec.target}: the Python index has no wheel of {others[0]} that fits"
        raise ConfigError(message, fix="take another cell")
    return pinned.requirements


def _is_extension(extensions: Extensions, line: str, *, cpu: bool) -> bool:
    requirement = Requirement(line)
    plain = not requirement.extras and requirement.marker is None
    extension = extensions.find(canonicalize_name(requirement.name)) if plain else None
    if extension is None or not cpu:
        return extension is not None
    return any(release.built_from and release.built_from.cpu for release in extension.releases)


def _chosen(
    matrix: Matrix, spec: ImageSpec, line: str, extensions: Extensions, gpus: Sequence[str]
) -> ChosenExtension | None:
    """Return the release that fits; None, and say so, where that is not known. Raises ConfigError where none can."""
    answer = answer_for_cell(matrix, spec.cell, spec.arch, [line], extensions, gpus)
    if answer.refused and answer.refused[0].not_known:
        click.echo(f"with    {line}: not known whether it fits: {answer.refused[0].reason}", err=True)
        return None
    if not answer.extensions:
        why = "; ".join([f"{each.word}: {each.reason}" for each in answer.refused] or answer.reasons)
        message = f"{line} does not fit {spec.cell}: {why}"
        raise ConfigError(message, fix=f"`envcheck resolve --with {line}` names a cell that it fits")
    return answer.extensions[0]


def _without_refused(matrix: Matrix, spec: ImageSpec, line: str, extensions: Extensions, gpus: Sequence[str]) -> str:
    """Return a requirement that leaves out the releases that cannot fit: the installer would take the newest."""
    requirement = Requirement(line)
    extension = extensions.find(canonicalize_name(requirement.name))
    for release in extension.releases if extension else []:
        if requirement.specifier.contains(release.version, prereleases=True):
            exact = f"{requirement.name}=={release.version}"
            answer = answer_for_cell(matrix, spec.cell, spec.arch, [exact], extensions, gpus)
            if answer.refused and not answer.refused[0].not_known:
                requirement.specifier &= f"!={release.version}"
    return str(requirement)


def _add(pinned: PinnedExtensions, chosen: ChosenExtension, spec: ImageSpec, line: str, sha256: str | None) -> None:
    """Add a release to what is compiled, fetched or left to the installer; say which release it is."""
    pin, how = f"{chosen.name}=={chosen.version}", "the newest on record that fits"
    file = _wheel_file(chosen, sha256)
    pins = {pin.name: pin.version for lock in spec.locks for pin in lock.pins}
    # The cell holds what is released with its torch, or the Python index has it for that build.
    held = chosen.name in pins or pins.get("torch", spec.cell.torch) == spec.cell.torch
    if chosen.verdict == SOURCE_ONLY and chosen.where is None:
        pinned.sources.append((chosen.name, chosen.version))
        how = "without a wheel, so it is compiled for"
    elif file is not None:
        pinned.files.append(file)
        how = f"from {chosen.where}, for"
    elif chosen.channel == "pypi" or chosen.verdict == JIT or (chosen.channel == "torch" and held):
        pinned.requirements.append(pin)
    else:
        takes = "an sdist of the index" if chosen.verdict == SOURCE_ONLY else "a file of the project's releases"
        where = chosen.where or ("torch's own index" if chosen.channel == "torch" else "its source")
        message = f"{line} fits {spec.cell} only from {where}, and a build takes {takes}"
        fix = f"add its wheel to your own index, or `envcheck resolve --with {line}` names a cell that it fits"
        raise ConfigError(message, fix=fix)
    if pin != line or chosen.channel not in ("pypi", "torch"):
        click.echo(f"with    {pin}: {how} {spec.cell}", err=True)
    if chosen.verdict == JIT:
        click.echo(f"with    {pin}: {chosen.reason}", err=True)


def _wheel_file(chosen: ChosenExtension, given: str | None) -> WantedFile | None:
    """Return the wheel of a project's own releases, or of another place that has its hash on record.

    Its hash is the `given` one, that on record, or the one that an earlier build kept; "" where this is the first use.
    """
    if chosen.channel in ("pypi", "torch") or chosen.file is None or chosen.where is None:
        return None
    digest = given or chosen.sha256 or kept_hash(chosen.file)
    if not digest and not (chosen.channel == "project" and chosen.where.endswith("/")):
        return None
    url = f"{chosen.where.rstrip('/')}/{chosen.file.replace('+', '%2B')}"
    return WantedFile((url,), digest, None, Path(chosen.file))


def with_packages(
    spec: ImageSpec,
    requirements: Sequence[str],
    profile: Profile,
    extensions: Extensions,
    *,
    keep: bool,
    wheels: Sequence[Path] = (),
) -> list[ImageSpec]:
    """Return the spec with these packages on top, of the kept lock where there is one; say which lock it is.

    `keep`: a new lock is kept for the next build. `wheels` are files beside those of the index. Native extensions get
    a lock of their own.
    """
    files = [parse_file_name(wheel.name) for wheel in wheels]
    requirements = [*requirements, *(f"{name}=={version}" for name, version, _ in files)]
    if not requirements:
        return [spec]
    digests = sorted(map(sha256, wheels))
    wanted = json.dumps([spec.tag, spec.promises["lock"], sorted(requirements), *([digests] if digests else [])])
    path = state_path("locks-on-top", f"{spec.tag}-{hashlib.sha256(wanted.encode()).hexdigest()[:16]}.lock")
    if path.is_file():
        lock, origin = read_kept(path, "user"), "kept from an earlier build"
        if wrong := contradiction(spec, lock, requirements):
            message = f"{path} {wrong}"
            raise ConfigError(message, fix=MADE_ANEW)
    else:
        made = lock_user_packages(spec, requirements, profile, wheels)
        if made is None:
            _say_excluded(spec, requirements)
            held = [line for line in requirements if line not in excluded(spec, requirements)]
            why = f": {spec.tag} holds {', '.join(held)}" if held else ""
            click.echo(f"with    nothing to add{why}", err=True)
            return [spec]
        lock, origin = made, "locked now: their hashes are what the mirror says today"
        if keep:
            path.parent.mkdir(parents=True, exist_ok=True)
            safe_files.replace(path, format_lock(made, f"{spec.tag}, on top: {', '.join(requirements)}").encode())
    where = f"; lock: {path}" if path.is_file() else ", not kept"
    click.echo(f"with    {counted(len(lock.pins), 'package')} on top, {origin}{where}", err=True)
    native = {name for row in extensions.extensions for name in (row.name, *row.aliases)}
    with_them = with_user_packages(spec, lock, native)
    _say_excluded(with_them, requirements)
    return [with_them]


def _say_excluded(spec: ImageSpec, requirements: Sequence[str]) -> None:
    for line in excluded(spec, requirements):
        click.echo(f"with    {line} is left out: its marker excludes this Python or platform", err=True)


class Wheels:
    """The wheels that packages on top have beside those of an index: compiled on `devel` or fetched, and stored."""

    def __init__(
        self, matrix: Matrix, store: Store, pinned: PinnedExtensions, devel: ImageSpec, gpus: Sequence[str]
    ) -> None:
        self._matrix, self._store, self._pinned, self._devel = matrix, store, pinned, devel
        if pinned.sources and devel.arch != architecture("auto"):  # emulated, one file of a real one takes an hour
            name, version = pinned.sources[0]
            message = f"{name} {version} must be compiled, which a machine of {devel.arch} can do"
            raise ConfigError(message, fix="build there, or add its wheel to your own index")
        self._facts = Facts(matrix)
        self._gpus = [capabilities(self._facts, gpus, devel.cuda, f"{name} {v}") for name, v in pinned.sources]

    def lacking(self) -> dict[str, list[str]]:
        """Return what a build would first compile and fetch, and what it installs then; nothing if all is there."""
        there = all(wheel.sha256 and self._store.has(wheel.sha256) for wheel in self._pinned.files)
        for (name, version), gpus in zip(self._pinned.sources, self._gpus, strict=True):
            known = recipe.pinned(self._devel, name, version)
            build = ExtensionBuild(sdist=known, devel=self._devel, gpus=gpus) if known else None
            there = there and bool(build and not self._devel.lacks_lock and recipe.kept_wheel(self._store, build))
        names = [f"{name} {version}" for name, version in self._pinned.sources]
        urls = [file.urls[0] for file in self._pinned.files]
        return {} if there else {"compile": names, "fetch": urls, "with": self._pinned.requirements}

    @contextlib.contextmanager
    def beside(
        self, profile: Profile, compiler: Compiler, settings: Settings
    ) -> Iterator[tuple[Profile, Sequence[Path]]]:
        """Compile or fetch the wheels, and yield them with the profile that has their directory too."""
        if not self._pinned.sources and not self._pinned.files:
            yield profile, []
            return
        with contextlib.ExitStack() as stack:
            with disk_errors(self._store.root), self._store.held():
                with transfer_options(settings, profile) as means:
                    wheels = [*self._compiled(compiler, means), *self._fetched(means)]
                folder = stack.enter_context(viewed(self._store, wheels))
            # A directory of this machine: its hash alone says that a wheel is taken.
            indexes = profile.pypi or ([] if profile.closed else [Index(url=CLIENT_DEFAULT)])
            pypi = [*indexes, Index(url=str(folder), kind="find-links")]
            yield msgspec.structs.replace(profile, pypi=pypi), sorted(folder.glob("*.whl"))

    def _compiled(self, compiler: Compiler, means: Callable[[str], TransferOptions]) -> Iterator[StoredWheel]:
        devel = lock_first(self._matrix, self._devel, compiler.profile) if self._pinned.sources else self._devel
        for (name, version), gpus in zip(self._pinned.sources, self._gpus, strict=True):
            source = recipe.bring(self._store, devel, name, version, compiler.profile, means)
            build = ExtensionBuild(sdist=source, devel=devel, gpus=gpus)
            wheel, new = wheel_of(build, self._store, self._facts, compiler, means)
            origin = "compiled now" if new else "compiled by an earlier build"
            click.echo(f"with    {wheel.name}: {origin}, kept in {self._store.root}", err=True)
            yield StoredWheel(wheel.name, wheel.sha256)

    def _fetched(self, means: Callable[[str], TransferOptions]) -> Iterator[StoredWheel]:
        for wheel in self._pinned.files:
            if not wheel.sha256:
                digest, path = fetch_new(self._store, wheel, means(wheel.path.name).client)
                what = f"trusted on first use, sha256 {digest}, kept in {path}"
                click.echo(f"with    {wheel.path.name}: no hash on record: {what}", err=True)
                yield StoredWheel(wheel.path.name, digest)
                continue
            if not self._store.sound(wheel.sha256):
                self._store.put(wheel, means(wheel.path.name))
            yield StoredWheel(wheel.path.name, wheel.sha256)
