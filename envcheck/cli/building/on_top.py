"""What a build locks before it builds: a cell without locks, its target, and what a user puts on top of both.

On top are native extensions in the release that fits, compiled or fetched where the index has no wheel, and packages.
"""

import contextlib
import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import msgspec
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envcheck import safe_files
from envcheck.cli import Settings
from envcheck.cli.building.cell_to_build import kept_locks, shared_locks, spec_to_build
from envcheck.cli.building.request import BuildRequest
from envcheck.cli.options import architecture
from envcheck.cli.shared.process import last_line
from envcheck.cli.sources import disk_errors, open_store, transfer_options
from envcheck.counting import counted
from envcheck.data import state_path
from envcheck.errors import ConfigError
from envcheck.images import lock_on_top, lock_with_uv
from envcheck.images import source_recipe as recipe
from envcheck.images.build_log import FailedError, said_of, step_of
from envcheck.images.dockerfile import write_locks
from envcheck.images.lock_on_top import contradiction, excluded, lock_user_packages
from envcheck.images.lockfile import MADE_ANEW, Lock, format_lock, read_kept, read_locks
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
from envcheck.reports import phrases

_Listener = Callable[[str], None]
# Seconds without a new line after which a build's last one is told again: in a log, and on a terminal.
_SILENT: Final = {False: 60.0, True: 5.0}


@contextlib.contextmanager
def details() -> Iterator[None]:
    """Print the step and its last lines before the one line that every error gets."""
    try:
        yield
    except FailedError as error:
        for line in error.detail:
            click.echo(f"  {line}", err=True)
        raise


@contextlib.contextmanager
def listeners(settings: Settings) -> Iterator[tuple[_Listener, _Listener]]:
    """Yield what prints messages, and of the build's lines: each step once, --verbose all, --quiet nothing of both.

    Each has the time since the start. While nothing new is printed, the last line of the build is, every few seconds.
    """
    began, ended = time.monotonic(), threading.Event()
    shown: set[str] = set()
    last, heard = "", began

    def tell(line: str) -> None:
        nonlocal heard
        heard = time.monotonic()
        if not settings.quiet:
            click.echo(f"  {phrases.duration(heard - began):>5}  {line}", err=True)

    def say(line: str) -> None:
        nonlocal last
        last = line
        tell(line)

    def on_line(line: str) -> None:
        nonlocal last
        title, last = step_of(line), said_of(line).strip() or last
        if settings.verbose and not settings.quiet:
            click.echo(line, err=True)
        elif title and title not in shown:
            shown.add(title)
            say(title)

    def beat() -> None:
        silent = _SILENT[sys.stderr.isatty()]
        while not ended.wait(silent / 5):
            if last and not settings.verbose and time.monotonic() - heard >= silent:
                tell(f"... {last_line(last)}")

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield say, on_line
    finally:
        ended.set()
        thread.join()


def specs_to_build(matrix: Matrix, request: BuildRequest, selector: str) -> list[ImageSpec]:
    """Return what each target of the cell is to be; some may lack locks."""
    images_dir, arch = request.options.images_dir, request.arch
    return [spec_to_build(matrix, selector, target, images_dir, arch) for target in request.targets]


def locked_specs(
    matrix: Matrix, request: BuildRequest, specs: Sequence[ImageSpec], profile: Profile
) -> list[ImageSpec]:
    """Return the specs with locks; the lock that was made for one is that of the next."""
    locked: list[ImageSpec] = []
    for given in specs:
        spec = given
        if spec.lacks_lock and locked:
            spec = spec_to_build(matrix, str(spec.cell), spec.target, request.options.images_dir, spec.arch)
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
    """Requirements with each known extension pinned. `sources` (name, version) must be compiled, `files` are fetched.

    Neither is among `requirements`.
    """

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
    """Return the native extensions of a spec's target, each pinned to the newest release that fits its cell.

    Raises ConfigError for one that cannot fit, or fits only from elsewhere than the Python index.
    """
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
    if chosen.verdict == SOURCE_ONLY and chosen.where is None:
        pinned.sources.append((chosen.name, chosen.version))
        how = "without a wheel, so it is compiled for"
    elif file is not None:
        pinned.files.append(file)
        how = f"from {chosen.where}, for"
    elif chosen.channel == "pypi" or chosen.verdict == JIT or (chosen.channel == "torch" and _has(spec, chosen.name)):
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


def _has(spec: ImageSpec, name: str) -> bool:
    """Return whether the cell holds what is released with its torch, or the Python index has it for that build."""
    held = {pin.name: pin.version for lock in spec.locks for pin in lock.pins}
    return name in held or held.get("torch", spec.cell.torch) == spec.cell.torch


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
    *,
    keep: bool,
    wheels: Sequence[Path] = (),
    native: Collection[str] = (),
) -> ImageSpec:
    """Return the spec with these packages on top, of the kept lock where there is one; say which lock it is.

    `keep`: a new lock is kept for the next build. `wheels` are files beside those of the index, and `native` names the
    native extensions, which get a lock of their own.
    """
    if not requirements:
        return spec
    path = _kept(spec, requirements, wheels)
    if path.is_file():
        lock, origin = _read(path, spec, requirements), "kept from an earlier build"
    else:
        made = lock_user_packages(spec, requirements, profile, wheels)
        if made is None:
            _say_excluded(excluded(spec, requirements))
            held = [line for line in requirements if line not in excluded(spec, requirements)]
            why = f": {spec.tag} holds {', '.join(held)}" if held else ""
            click.echo(f"with    nothing to add{why}", err=True)
            return spec
        lock, origin = made, "locked now: their hashes are what the mirror says today"
        if keep:
            path.parent.mkdir(parents=True, exist_ok=True)
            safe_files.replace(path, format_lock(made, f"{spec.tag}, on top: {', '.join(requirements)}").encode())
    where = f"; lock: {path}" if path.is_file() else ", not kept"
    click.echo(f"with    {counted(len(lock.pins), 'package')} on top, {origin}{where}", err=True)
    with_them = with_user_packages(spec, lock, native)
    _say_excluded(excluded(with_them, requirements))
    return with_them


def _say_excluded(requirements: Sequence[str]) -> None:
    for line in requirements:
        click.echo(f"with    {line} is left out: its marker excludes this Python or platform", err=True)


def _read(path: Path, spec: ImageSpec, requirements: Sequence[str]) -> Lock:
    """Return a kept lock; ConfigError where it cannot be read or is not one of these requirements on this cell."""
    lock = read_kept(path, "user")
    wrong = contradiction(spec, lock, requirements)
    if wrong:
        message = f"{path} {wrong}"
        raise ConfigError(message, fix=MADE_ANEW)
    return lock


def _kept(spec: ImageSpec, requirements: Sequence[str], wheels: Sequence[Path]) -> Path:
    files = sorted(map(sha256, wheels))
    request = json.dumps([spec.tag, spec.promises["lock"], sorted(requirements), *([files] if files else [])])
    return state_path("locks-on-top", f"{spec.tag}-{hashlib.sha256(request.encode()).hexdigest()[:16]}.lock")


class OnTop(NamedTuple):
    """The specs with packages on top, and the profile that has their files; in a plan, what is made `first`."""

    specs: Sequence[ImageSpec]
    profile: Profile
    first: dict[str, Any] | None = None


def most_jobs() -> int | None:
    """Return the user's own limit of compilers at once, $MAX_JOBS, None without one. Raises ConfigError."""
    text = os.environ.get("MAX_JOBS", "").strip()
    if not text:
        return None
    if not text.isdecimal() or int(text) < 1:
        message = f"MAX_JOBS is {text!r}, which is no number of jobs"
        raise ConfigError(message, fix="set it to 1 or more, or unset it")
    return int(text)


@contextlib.contextmanager
def with_requirements(
    matrix: Matrix, specs: Sequence[ImageSpec], profile: Profile, request: BuildRequest
) -> Iterator[OnTop]:
    """Yield the specs with packages on top: extensions in the release that fits, compiled where none has a wheel.

    A plan does not compile: where a wheel is not there yet, it is what is made first.
    """
    if not request.requirements:
        yield OnTop(specs, profile)
        return
    (spec,), options = specs, request.options
    extensions = known_extensions(options.extensions)
    pinned = pinned_to_fit(matrix, spec, request.requirements, extensions, options.gpus, request.hashes)
    native = frozenset(name for row in extensions.extensions for name in (row.name, *row.aliases))
    lines, keep = pinned.requirements, not options.dry_run
    if not pinned.sources and not pinned.files:
        yield OnTop([with_packages(spec, lines, profile, keep=keep, native=native)], profile)
        return
    made = _Wheels(matrix, spec, pinned, request)
    if options.dry_run and made.lacking():
        names = {
            "compile": [f"{name} {version}" for name, version in pinned.sources],
            "fetch": [file.urls[0] for file in pinned.files],
        }
        yield OnTop(specs, profile, {**names, "with": lines})
        return
    with made.in_directory(profile) as folder:
        paths = sorted(folder.glob("*.whl"))
        lines, profile = [*lines, *map(_pin, paths)], with_directory(profile, folder)
        yield OnTop([with_packages(spec, lines, profile, keep=keep, wheels=paths, native=native)], profile)


def _pin(wheel: Path) -> str:
    name, version, _ = parse_file_name(wheel.name)
    return f"{name}=={version}"


def with_directory(profile: Profile, folder: Path) -> Profile:
    """Return the profile with the wheels of a directory of this machine; its hash alone says that one is taken."""
    indexes = profile.pypi or ([] if profile.closed else [Index(url=CLIENT_DEFAULT)])
    return msgspec.structs.replace(profile, pypi=[*indexes, Index(url=str(folder), kind="find-links")])


class _Wheels:
    def __init__(self, matrix: Matrix, spec: ImageSpec, pinned: PinnedExtensions, request: BuildRequest) -> None:
        self._spec, self._pinned, self._request = spec, pinned, request
        self._store: Store = open_store(request.options.store)
        self._matrix, self._facts = matrix, Facts(matrix)
        if pinned.sources and spec.arch != architecture("auto"):  # emulated, one file of a real one takes an hour
            name, version = pinned.sources[0]
            message = f"{name} {version} must be compiled, which a machine of {spec.arch} can do"
            raise ConfigError(message, fix="build there, or add its wheel to your own index")
        gpus = request.options.gpus
        self._gpus = [capabilities(self._facts, gpus, spec.cuda, f"{name} {v}") for name, v in pinned.sources]

    def _devel(self) -> ImageSpec:
        images_dir = self._request.options.images_dir
        return spec_to_build(self._matrix, str(self._spec.cell), "devel", images_dir, self._spec.arch)

    def lacking(self) -> bool:
        """Tell whether a build would first compile or fetch an extension."""
        if any(not wheel.sha256 or not self._store.has(wheel.sha256) for wheel in self._pinned.files):
            return True
        devel = self._devel() if self._pinned.sources else self._spec
        for (name, version), gpus in zip(self._pinned.sources, self._gpus, strict=True):
            known = recipe.pinned(devel, name, version)
            build = ExtensionBuild(sdist=known, devel=devel, gpus=gpus) if known else None
            if devel.lacks_lock or build is None or recipe.kept_wheel(self._store, build) is None:
                return True
        return False

    @contextlib.contextmanager
    def in_directory(self, profile: Profile) -> Iterator[Path]:
        """Compile or fetch the wheels, and yield a directory that has them."""
        with contextlib.ExitStack() as stack:
            with disk_errors(self._store.root), self._store.held():
                with transfer_options(self._request.settings, profile) as means:
                    wheels = [*self._compiled(profile, means), *self._fetched(means)]
                folder = stack.enter_context(viewed(self._store, wheels))
            yield folder

    def _compiled(self, profile: Profile, means: Callable[[str], TransferOptions]) -> Iterator[StoredWheel]:
        if not self._pinned.sources:
            return
        request, limit = self._request, most_jobs()
        devel = lock_first(self._matrix, self._devel(), profile)
        with details(), listeners(request.settings) as (say, on_line):
            compiler = Compiler(request.engine, profile, request.base, request.options.timeout, limit, on_line, say)
            for (name, version), gpus in zip(self._pinned.sources, self._gpus, strict=True):
                source = recipe.bring(self._store, devel, name, version, profile, means)
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
