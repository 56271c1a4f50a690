"""Read and write extensions.yaml, which ships in the package: through a cache, and in one canonical form."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from envcheck.errors import ConfigError
from envcheck.matrix.extensions.model import Extension, ExtensionRelease, Extensions, ExtensionWheel
from envcheck.matrix.facts.lookup import Facts
from envcheck.matrix.facts.model import Matrix, key
from envcheck.matrix.file import load as cache
from envcheck.matrix.file.canonical import text
from envcheck.matrix.file.lint import Problem, sources
from envcheck.matrix.file.load import refuse_duplicates, typed
from envcheck.safe_files import read_whole

HEADER: Final = """\
# Native extensions: releases, their wheels, and what these bind to. Each row names its sources (keys of `sources`).
# Versions are strings. `verified: false` and `code_verified: false` mark what one weak source says.
# A wheel without `cuda` and `sass` was never opened: it never counts as fitting. `matrix check` checks this form.
"""
SHIPPED: Final = Path(__file__).with_name("extensions.yaml")
_CHANNELS: Final = ("pypi", "pytorch", "project", "third-party")


def load(path: Path | None = None) -> Extensions:
    """Return the extensions in `path`, or the shipped ones. Raises ConfigError."""
    name = str(path) if path else SHIPPED.name
    try:
        raw = read_whole(path or SHIPPED)
    except OSError as error:
        message = f"{name}: {error.strerror or 'cannot be read'}"
        raise ConfigError(message, fix="give a readable file with --extensions") from error
    return cache.cached(raw, lambda: loads(raw, name) if path is None else _own(raw, name), Extensions)


def _own(raw: bytes, name: str) -> Extensions:
    """Return a site's own facts, which no test has linted. Raises ConfigError for versions that cannot be compared."""
    extensions = loads(raw, name)
    for row in extensions.extensions:
        for release in row.releases:
            for problem in unreadable(release):
                message = f"{name}: {row.name} {release.version}: {problem}"
                raise ConfigError(message, fix="write versions and specifiers as METADATA does")
    return extensions


def loads(raw: bytes, name: str = SHIPPED.name) -> Extensions:
    """Return the extensions in the YAML text `raw`. `name` is what errors call the file. Raises ConfigError."""
    extensions, document = typed(raw, name, Extensions, SHIPPED.name)
    names = [other for row in extensions.extensions for other in (row.name, *row.aliases)]
    refuse_duplicates(document, "$.extensions", names)
    for at, row in enumerate(extensions.extensions):
        refuse_duplicates(document, f"$.extensions[{at}].releases", (release.version for release in row.releases))
    return extensions


def canonical(extensions: Extensions) -> Extensions:
    """Return the same facts in the order of the file: projects by name, releases and wheels oldest first."""
    rows = sorted((_extension(row) for row in extensions.extensions), key=lambda row: row.name)
    return msgspec.structs.replace(extensions, sources=dict(sorted(extensions.sources.items())), extensions=rows)


def dump(extensions: Extensions) -> str:
    """Return the text of extensions.yaml. Loading it gives `canonical(extensions)`."""
    return text(canonical(extensions), HEADER)


def _extension(row: Extension) -> Extension:
    releases = sorted((_release(release) for release in row.releases), key=lambda each: Version(each.version))
    return msgspec.structs.replace(row, releases=releases)


def _release(release: ExtensionRelease) -> ExtensionRelease:
    return msgspec.structs.replace(
        release,
        requires=dict(sorted(release.requires.items())),
        wheels=sorted((_wheel(wheel) for wheel in release.wheels), key=_place),
    )


def _wheel(wheel: ExtensionWheel) -> ExtensionWheel:
    return msgspec.structs.replace(
        wheel,
        tags=sorted(wheel.tags),
        variants=sorted(wheel.variants),
        torch=sorted(wheel.torch, key=key),
        cxx11abi=sorted(wheel.cxx11abi),
        cuda=None if wheel.cuda is None else sorted(wheel.cuda, key=key),
        sass=None if wheel.sass is None else sorted(wheel.sass, key=key),
        ptx=sorted(wheel.ptx, key=key),
    )


def _place(wheel: ExtensionWheel) -> tuple[object, ...]:
    torches = [key(minor) for minor in wheel.torch]
    return (_CHANNELS.index(wheel.channel), wheel.arch == "aarch64", wheel.cuda or [], torches, wheel.variants)


def merged(shipped: Extensions, own: Extensions) -> Extensions:
    """Return the shipped facts with a site's own: its releases come beside those shipped, or replace them."""
    rows = {row.name: row for row in shipped.extensions}
    for row in own.extensions:
        releases = {release.version: release for each in (rows.get(row.name, row), row) for release in each.releases}
        rows[row.name] = msgspec.structs.replace(row, releases=[*releases.values()])
    return msgspec.structs.replace(shipped, sources=shipped.sources | own.sources, extensions=[*rows.values()])


# The facts age in weeks: older minors of an extension are removed when new ones come.
MOST_MINORS: Final = 7


def lint(extensions: Extensions, matrix: Matrix) -> list[Problem]:
    """Return all problems of the facts; a consistent file has none."""
    facts = Facts(matrix)
    variants = {variant.variant for release in matrix.torch for variant in release.variants}
    problems = list(sources(extensions, extensions.sources))
    for row in extensions.extensions:
        minors = {tuple(release.version.split(".")[:2]) for release in row.releases}
        if len(minors) > MOST_MINORS:
            problems.append(Problem(row.name, f"{len(minors)} minors: keep the newest {MOST_MINORS}"))
        if not row.releases:
            problems.append(Problem(row.name, "it has no release: no answer can name one"))
        for release in row.releases:
            where = f"{row.name} {release.version}"
            problems += [Problem(where, problem) for problem in unreadable(release)]
            if not release.wheels and release.built_from is None:
                problems.append(Problem(where, "it has neither a wheel nor a source: nothing can be installed"))
            for wheel in release.wheels:
                problems += [Problem(where, problem) for problem in _wheel_problems(facts, variants, wheel)]
    return problems


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
        try:
            SpecifierSet(specifier)
        except InvalidSpecifier:  # noqa: PERF203 (specifiers are few)
            yield f"{name}: {specifier!r} is not a version specifier (PEP 440)"


def _wheel_problems(facts: Facts, variants: set[str], wheel: ExtensionWheel) -> Iterator[str]:
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
