"""The native extensions that a user names for a cell: which releases the facts allow, and what the installer says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from envcheck.counting import counted

if TYPE_CHECKING:
    from envcheck.images.spec import ImageSpec
    from envcheck.matrix.extensions.answer import ExtensionResolution
    from envcheck.matrix.extensions.model import Extensions
    from envcheck.matrix.facts.model import Cell, HostArch, Matrix
    from envcheck.mirrors.profiles.model import Profile


def answer_for_cell(matrix: Matrix, cell: Cell, arch: HostArch, requirements: Sequence[str]) -> ExtensionResolution:
    """Return which releases of these extensions fit a cell, whatever the GPU. Raises ConfigError for an unknown one."""
    from envcheck.matrix.extensions import file
    from envcheck.matrix.extensions.answer import resolve_with, wanted_extensions
    from envcheck.matrix.resolver.query import Query
    from envcheck.matrix.resolver.resolve import resolve

    extensions = file.load()
    query = Query(torch=f"=={cell.torch}", variant=cell.variant, python=cell.python, arch=arch)
    return resolve_with(matrix, extensions, resolve(matrix, query), wanted_extensions(extensions, [*requirements]))


def pinned_to_fit(matrix: Matrix, spec: ImageSpec, requirements: Sequence[str]) -> list[str]:
    """Return the requirements with each known extension pinned to the newest release that fits the spec's cell.

    Raises ConfigError for one that cannot fit: METADATA mostly lets the installer take it. What is not known is said.
    Requirements with extras or markers, and all on a cell without CUDA, are left to the installer.
    """
    from envcheck.matrix.extensions import file

    extensions = file.load()
    named = {line for line in requirements if _is_extension(extensions, line)} if spec.cell.variant != "cpu" else set()
    return [_pinned(matrix, spec, line) if line in named else line for line in requirements]


def _is_extension(extensions: Extensions, line: str) -> bool:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    requirement = Requirement(line)
    plain = not requirement.extras and requirement.marker is None
    return plain and extensions.find(canonicalize_name(requirement.name)) is not None


def _pinned(matrix: Matrix, spec: ImageSpec, line: str) -> str:
    from envcheck.errors import ConfigError
    from envcheck.matrix.extensions.fit import JIT

    answer = answer_for_cell(matrix, spec.cell, spec.arch, [line])
    if answer.refused and answer.refused[0].not_known:
        click.echo(f"with    {line}: not known whether it fits: {answer.refused[0].reason}", err=True)
        return line
    fix = f"`envcheck resolve --with {line}` names a cell that it fits"
    if not answer.extensions:
        why = "; ".join([f"{each.word}: {each.reason}" for each in answer.refused] or answer.reasons)
        message = f"{line} does not fit {spec.cell}: {why}"
        raise ConfigError(message, fix=fix)
    (chosen,) = answer.extensions
    if chosen.channel != "pypi" and chosen.verdict != JIT:
        message = (
            f"{line} fits {spec.cell} only from {chosen.where or 'its source'}, and a build takes wheels of the index"
        )
        raise ConfigError(message, fix=f"add its wheel to your own index, or {fix}")
    pin = f"{chosen.name}=={chosen.version}"
    if pin != line:
        click.echo(f"with    {pin}: the newest on record that fits {spec.cell}", err=True)
    return pin


def ask_installer(
    matrix: Matrix, cell: Cell, arch: HostArch, requirements: Sequence[str], profile: Profile
) -> str | None:
    """Print what fits a cell and whether the installer agrees; return None then, else what is wrong.

    What the Python index does not serve as a wheel is named: the installer was not asked about it.
    """
    from envcheck.images.dry_resolution import DisagreementError, dry_resolution

    answer = answer_for_cell(matrix, cell, arch, requirements)
    if not answer.extensions:
        return "; ".join(answer.reasons)
    served = [f"{each.name}=={each.version}" for each in answer.extensions if each.channel == "pypi"]
    for each in answer.extensions:
        index = "" if each.channel == "pypi" else f", from {each.where or 'its source'}: the installer was not asked"
        click.echo(f"{cell}: {each.name} {each.version} ({each.verdict}){index}")
    if not served:
        return None
    try:
        packages = dry_resolution(matrix, cell, served, profile, arch)
    except DisagreementError as error:
        return f"the installer disagrees with the facts: {error.message}"
    click.echo(f"{cell}: the installer agrees: {counted(packages, 'package')} with torch {cell.torch}")
    return None
