"""What a user puts on top of a cell: native extensions in the release that fits, and locked packages."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import click
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envcheck import safe_files
from envcheck.counting import counted
from envcheck.data import state_path
from envcheck.errors import ConfigError
from envcheck.images.lock_on_top import checked, contradiction, excluded, lock_user_packages, read_requirements
from envcheck.images.lockfile import Lock, format_lock, parse_lock
from envcheck.images.spec import ImageSpec, with_user_packages
from envcheck.images.targets import extensions_of
from envcheck.images.wheels import sha256
from envcheck.matrix.extensions import file
from envcheck.matrix.extensions.answer import ChosenExtension, ExtensionResolution, resolve_with, wanted_extensions
from envcheck.matrix.extensions.fit import JIT, SOURCE_ONLY
from envcheck.matrix.extensions.model import Extensions
from envcheck.matrix.facts.model import Cell, HostArch, Matrix
from envcheck.matrix.resolver.query import Query
from envcheck.matrix.resolver.resolve import resolve
from envcheck.mirrors.profiles.model import Profile


class WheelFile(NamedTuple):
    """A wheel that is not on the Python index: the file, where it is, and its hash on record."""

    name: str
    url: str
    sha256: str


class PinnedExtensions(NamedTuple):
    """Requirements with each known extension pinned. `sources` (name, version) must be compiled, `files` are fetched.

    Neither is among `requirements`.
    """

    requirements: list[str]
    sources: list[tuple[str, str]]
    files: list[WheelFile]


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
) -> PinnedExtensions:
    """Return the requirements with each known extension pinned to the newest release that fits the spec's cell.

    Raises ConfigError for one that cannot fit: METADATA mostly lets the installer take it. What is not known is said.
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
            _add(pinned, chosen, spec, line)
    return pinned


def extensions_of_target(matrix: Matrix, spec: ImageSpec) -> list[str]:
    """Return the native extensions of a spec's target, each pinned to the newest release that fits its cell.

    Raises ConfigError for one that cannot fit, or fits only from elsewhere than the Python index.
    """
    pinned = pinned_to_fit(matrix, spec, extensions_of(spec.target, spec.cuda))
    others = [*(name for name, _ in pinned.sources), *(file.name for file in pinned.files)]
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


def _add(pinned: PinnedExtensions, chosen: ChosenExtension, spec: ImageSpec, line: str) -> None:
    """Add a release to what is compiled, fetched or left to the installer; say which release it is."""
    pin, how = f"{chosen.name}=={chosen.version}", "the newest on record that fits"
    file = _wheel_file(chosen)
    if chosen.verdict == SOURCE_ONLY and chosen.where is None:
        pinned.sources.append((chosen.name, chosen.version))
        how = "without a wheel, so it is compiled for"
    elif file is not None:
        pinned.files.append(file)
        how = f"from {chosen.where}, for"
    elif chosen.channel == "pypi" or chosen.verdict == JIT:
        pinned.requirements.append(pin)
    else:
        takes = "an sdist of the index" if chosen.verdict == SOURCE_ONLY else "a wheel whose sha256 is on record"
        message = f"{line} fits {spec.cell} only from {chosen.where or 'its source'}, and a build takes {takes}"
        fix = f"add its wheel to your own index, or `envcheck resolve --with {line}` names a cell that it fits"
        raise ConfigError(message, fix=fix)
    if pin != line or chosen.channel != "pypi":
        click.echo(f"with    {pin}: {how} {spec.cell}", err=True)
    if chosen.verdict == JIT:
        click.echo(f"with    {pin}: {chosen.reason}", err=True)


def _wheel_file(chosen: ChosenExtension) -> WheelFile | None:
    """Return the wheel of a project's own releases or another place, if its hash is on record."""
    if chosen.channel == "pypi" or chosen.file is None or chosen.where is None or chosen.sha256 is None:
        return None
    return WheelFile(chosen.file, f"{chosen.where.rstrip('/')}/{chosen.file}", chosen.sha256)


def requested_packages(named: Sequence[str], file: Path | None) -> list[str]:
    """Return the requirements of --with and --with-file; one that cannot be locked is a ConfigError."""
    return [*checked(named), *(read_requirements(file) if file else [])]


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
    fix = "delete it: the next build makes it anew"
    try:
        lock = parse_lock(path.read_text(encoding="utf-8"), "user", str(path))
    except (ConfigError, OSError, UnicodeDecodeError) as error:
        reason = error.message if isinstance(error, ConfigError) else f"{path} cannot be read"
        raise ConfigError(reason, fix=fix) from error
    wrong = contradiction(spec, lock, requirements)
    if wrong:
        message = f"{path} {wrong}"
        raise ConfigError(message, fix=fix)
    return lock


def _kept(spec: ImageSpec, requirements: Sequence[str], wheels: Sequence[Path]) -> Path:
    """Return where the lock of these requirements, and these files, on top of these locks is kept."""
    files = sorted(map(sha256, wheels))
    request = json.dumps([spec.tag, spec.promises["lock"], sorted(requirements), *([files] if files else [])])
    return state_path("locks-on-top", f"{spec.tag}-{hashlib.sha256(request.encode()).hexdigest()[:16]}.lock")
