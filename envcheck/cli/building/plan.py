"""What a build comes to once its cell has locks: its targets, and what is installed on top of them.

What comes on top is decided here, from the request, the facts and the locks, and said on standard error.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import click
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envcheck.cli.building.cell_to_build import spec_to_build
from envcheck.cli.building.request import BuildRequest
from envcheck.cli.options import architecture
from envcheck.errors import ConfigError, refuse
from envcheck.images import source_recipe as recipe
from envcheck.images.source_recipe import ExtensionBuild, capabilities
from envcheck.images.spec import ImageSpec
from envcheck.images.targets import extensions_of
from envcheck.images.wheels import kept_hash
from envcheck.matrix.extensions import file
from envcheck.matrix.extensions.answer import ChosenExtension, ExtensionResolution, resolve_with, wanted_extensions
from envcheck.matrix.extensions.file import Extension, Extensions
from envcheck.matrix.extensions.fit import JIT, SOURCE_ONLY
from envcheck.matrix.facts.lookup import Facts
from envcheck.matrix.facts.model import Matrix
from envcheck.matrix.resolver.query import Query
from envcheck.matrix.resolver.resolve import resolve
from envcheck.mirrors.fetch.request import WantedFile
from envcheck.mirrors.store.objects import Store


class PinnedExtensions(NamedTuple):
    """Known extensions, pinned. `sources` (name, version) are compiled, `files` fetched: neither in `requirements`."""

    requirements: list[str]
    sources: list[tuple[str, str]]
    files: list[WantedFile]


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
    pinned = pinned_to_fit(matrix, spec, request.requirements, known, gpus)
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
) -> PinnedExtensions:
    """Return the requirements with each known extension pinned to the newest release that fits the spec's cell.

    Raises ConfigError for a requirement that cannot fit: METADATA mostly lets the installer take it. What is not known
    is said.
    Requirements with extras or markers are left to the installer, and so are all on a cell without CUDA but for those
    that have no wheel and compile for the CPU.
    """
    extensions = extensions or known_extensions()
    cell, pinned = spec.cell, PinnedExtensions([], [], [])
    query = Query(torch=f"=={cell.torch}", variant=cell.variant, python=cell.python, gpus=[*gpus], arch=spec.arch)

    def answer(line: str) -> ExtensionResolution:
        return resolve_with(matrix, extensions, resolve(matrix, query), wanted_extensions(extensions, [line]))

    for line in requirements:
        requirement = Requirement(line)
        extension = _known(extensions, requirement, cpu=cell.variant == "cpu")
        chosen = _chosen(answer(line), spec, line) if extension else None
        if chosen is not None:
            _add(pinned, chosen, spec, line)
            continue
        for release in extension.releases if extension else ():
            # The installer would take the newest.
            if requirement.specifier.contains(release.version, prereleases=True):
                refused = answer(f"{requirement.name}=={release.version}").refused
                requirement.specifier &= f"!={release.version}" if refused and not refused[0].not_known else ""
        pinned.requirements.append(str(requirement) if extension else line)
    return pinned


def extensions_of_target(matrix: Matrix, spec: ImageSpec) -> list[str]:
    """Return the target's native extensions, pinned to what fits. ConfigError: one fits not, or not from the index."""
    pinned = pinned_to_fit(matrix, spec, extensions_of(spec.target, spec.cuda))
    others = [*(name for name, _ in pinned.sources), *(file.path.name for file in pinned.files)]
    if others:
        message = f"{spec.cell}, target {spec.target}: the Python index has no wheel of {others[0]} that fits"
        raise ConfigError(message, fix="take another cell")
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


def _add(pinned: PinnedExtensions, chosen: ChosenExtension, spec: ImageSpec, line: str) -> None:
    """Add a release to what is compiled, fetched or left to the installer; say which release it is."""
    pin, how = f"{chosen.name}=={chosen.version}", "the newest on record that fits"
    file = _wheel_file(chosen)
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


def _wheel_file(chosen: ChosenExtension) -> WantedFile | None:
    """Return the wheel of a project's own releases, or of another place that has its hash on record.

    Its hash is that on record, or the one that an earlier build kept; "" where this is the first use.
    """
    if chosen.channel in ("pypi", "torch") or chosen.file is None or chosen.where is None:
        return None
    digest = chosen.sha256 or kept_hash(chosen.file)
    if not digest and not (chosen.channel == "project" and chosen.where.endswith("/")):
        return None
    url = f"{chosen.where.rstrip('/')}/{chosen.file.replace('+', '%2B')}"
    return WantedFile((url,), digest, None, Path(chosen.file))
