"""What extensions.yaml must be: consistent with itself and with matrix.yaml, and small."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from envcheck.matrix.extensions.file import Extensions, ExtensionWheel, unreadable
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
