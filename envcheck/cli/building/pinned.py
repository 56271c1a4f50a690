"""Extensions of torch pinned to the releases that fit a cell; which these are is said on standard error."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import click
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envcheck.errors import ConfigError, refuse
from envcheck.images.spec import ImageSpec
from envcheck.images.targets import extensions_of
from envcheck.images.wheels import kept_hash
from envcheck.matrix.extensions import file
from envcheck.matrix.extensions.answer import ChosenExtension, ExtensionResolution, resolve_with, wanted_extensions
from envcheck.matrix.extensions.file import Extension, Extensions
from envcheck.matrix.extensions.fit import JIT, SOURCE_ONLY
from envcheck.matrix.facts.model import Matrix
from envcheck.matrix.resolver.query import Query
from envcheck.matrix.resolver.resolve import resolve
from envcheck.mirrors.fetch.request import WantedFile


class PinnedExtensions(NamedTuple):
    """Known extensions, pinned. `sources` (name, version) are compiled, `files` fetched: neither in `requirements`."""

    requirements: list[str]
    sources: list[tuple[str, str]]
    files: list[WantedFile]


def known_extensions(path: Path | None = None) -> Extensions:
    """Return the facts about extensions, those of a site's own file before those shipped. Raises ConfigError."""
    shipped = file.load()
    return file.merged(shipped, file.load(path)) if path else shipped


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
    extensions, hashes = extensions or known_extensions(), hashes or {}
    cell, pinned = spec.cell, PinnedExtensions([], [], [])
    query = Query(torch=f"=={cell.torch}", variant=cell.variant, python=cell.python, gpus=[*gpus], arch=spec.arch)

    def answer(line: str) -> ExtensionResolution:
        return resolve_with(matrix, extensions, resolve(matrix, query), wanted_extensions(extensions, [line]))

    for line in requirements:
        requirement = Requirement(line)
        extension = _known(extensions, requirement, cpu=cell.variant == "cpu")
        chosen = _chosen(answer(line), spec, line) if extension else None
        if chosen is not None:
            _add(pinned, chosen, spec, line, hashes.get(canonicalize_name(requirement.name)))
            continue
        for release in extension.releases if extension else ():
            # The installer would take the newest.
            if requirement.specifier.contains(release.version, prereleases=True):
                refused = answer(f"{requirement.name}=={release.version}").refused
                requirement.specifier &= f"!={release.version}" if refused and not refused[0].not_known else ""
        pinned.requirements.append(str(requirement) if extension else line)
    for name, digest in hashes.items():
        if digest not in [file.sha256 for file in pinned.files]:
            message = f"--sha256 {name}: this build takes no wheel of {name} from its project"
            refuse(message, "leave it out: the lock holds what an index serves to its hash")
    return pinned


def extensions_of_target(matrix: Matrix, spec: ImageSpec) -> list[str]:
    """Return the target's native extensions, pinned to what fits. ConfigError: one fits not, or not from the index."""
    pinned = pinned_to_fit(matrix, spec, extensions_of(spec.target, spec.cuda))
    others = [*(name for name, _ in pinned.sources), *(file.path.name for file in pinned.files)]
    if others:
        refuse(f"{spec.cell} {spec.target}: the index has no wheel of {others[0]} that fits", "take another cell")
    return pinned.requirements


def _known(extensions: Extensions, requirement: Requirement, *, cpu: bool) -> Extension | None:
    if requirement.extras or requirement.marker is not None:
        return None
    extension = extensions.find(canonicalize_name(requirement.name))
    compiles = extension and any(release.built_from and release.built_from.cpu for release in extension.releases)
    return extension if compiles or not cpu else None


def _chosen(answer: ExtensionResolution, spec: ImageSpec, line: str) -> ChosenExtension | None:
    """Return the release that fits; None, and say so, where that is not known. Raises ConfigError where none can."""
    if answer.refused and answer.refused[0].not_known:
        click.echo(f"with    {line}: not known whether it fits: {answer.refused[0].reason}", err=True)
        return None
    if not answer.extensions:
        why = "; ".join([f"{each.word}: {each.reason}" for each in answer.refused] or answer.reasons)
        refuse(f"{line} does not fit {spec.cell}: {why}", f"`envcheck resolve --with {line}` names a cell that it fits")
    return answer.extensions[0]


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
