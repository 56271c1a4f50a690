"""Check that the facts of extensions.yaml are consistent with each other and with matrix.yaml."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from envcheck.matrix.extensions.model import ExtensionRelease, Extensions, ExtensionWheel
from envcheck.matrix.facts.lookup import Facts
from envcheck.matrix.facts.model import Matrix
from envcheck.matrix.file.lint import Problem, sources

# The facts age in weeks: older minors of an extension are removed when new ones come.
MOST_MINORS: Final = 7


def lint(extensions: Extensions, matrix: Matrix) -> list[Problem]:
    """Return all problems of the facts; a consistent file has none."""
    facts = Facts(matrix)
    variants = {variant.variant for release in matrix.torch for variant in release.variants}
    problems = list(sources(extensions, extensions.sources))
    for row in extensions.extensions:
        minors = {_minor(release.version) for release in row.releases}
        if len(minors) > MOST_MINORS:
            problems.append(Problem(row.name, f"{len(minors)} minors: keep the newest {MOST_MINORS}"))
        if not row.releases:
            problems.append(Problem(row.name, "it has no release: no answer can name one"))
        for release in row.releases:
            where = f"{row.name} {release.version}"
            problems += [Problem(where, problem) for problem in _release(release)]
            for wheel in release.wheels:
                problems += [Problem(where, problem) for problem in _wheel(facts, variants, wheel)]
    return problems


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def unreadable(release: ExtensionRelease) -> Iterator[str]:
    """Yield each version and specifier of a release that is none: no question about it has an answer."""
    try:
        Version(release.version)
    except InvalidVersion:
        yield f"{release.version} is not a version (PEP 440)"
    specifiers = {"requires_python": release.requires_python or "", **release.requires}
    specifiers |= {f"wheels[{at}].built_for": wheel.built_for or "" for at, wheel in enumerate(release.wheels)}
    specifiers |= {"built_from.torch": (release.built_from.torch if release.built_from else None) or ""}
    for name, specifier in specifiers.items():
        if not _is_specifier(specifier):
            yield f"{name}: {specifier!r} is not a version specifier (PEP 440)"


def _release(release: ExtensionRelease) -> Iterator[str]:
    yield from unreadable(release)
    if not release.wheels and release.built_from is None:
        yield "it has neither a wheel nor a source: nothing can be installed"


def _is_specifier(text: str) -> bool:
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        return False
    return True


def _wheel(facts: Facts, variants: set[str], wheel: ExtensionWheel) -> Iterator[str]:
    for name in wheel.variants:
        if name not in variants:
            yield f"no torch of matrix.yaml has the variant {name}"
    for major in wheel.cuda or []:
        if major not in facts.families:
            yield f"CUDA {major} is not among cuda.families"
    if wheel.cuda is None and wheel.sass is not None and wheel.sass:
        yield "it has GPU code but no CUDA major"
    if wheel.channel != "pypi" and wheel.where is None:
        yield f"a wheel of the channel {wheel.channel} needs `where`"
    if wheel.cuda_choices and len(wheel.cuda or []) < 2:  # noqa: PLR2004 (a choice is of two)
        yield "cuda_choices is for wheels with libraries of several CUDA majors"
