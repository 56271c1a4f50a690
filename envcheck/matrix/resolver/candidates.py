"""List, judge and rank every combination that a query allows."""

from __future__ import annotations

from typing import NamedTuple

from envcheck.matrix.facts.lookup import Device, Facts
from envcheck.matrix.facts.model import Build, Cell, HostArch, TorchRelease, TorchVariant
from envcheck.matrix.facts.versions import key, python_key
from envcheck.matrix.resolver.query import Query, matching
from envcheck.matrix.resolver.verdict import (
    FORWARD,
    LEGAL,
    NO_PYTHON,
    NO_WHEEL,
    OK,
    ORDER,
    Verdict,
    Weak,
    judge_gpu,
    union,
    unless,
)


class Candidate(NamedTuple):
    """One torch and variant on one host arch, with the Pythons that have a wheel, best first."""

    torch: str
    variant: str
    pythons: list[str]
    verdict: Verdict
    pypi: bool = False
    cuda: str | None = None

    @property
    def legal(self) -> bool:
        """Whether it can run."""
        return self.verdict.name in LEGAL

    def cells(self) -> list[Cell]:
        """Return its cells, best first."""
        return [Cell(torch=self.torch, variant=self.variant, python=python) for python in self.pythons]


def candidates(facts: Facts, query: Query, devices: list[Device], arch: HostArch) -> list[Candidate]:
    """Return all candidates, best first.

    Candidates that run on the node as it is come first, then those that need a cuda-compat package, then those that
    cannot run. In each group: newest torch, native before minor-version compatibility, PyPI's variant before others.
    """
    judged = [
        candidate
        for release in matching(facts.matrix.torch, query.torch)
        for candidate in _of_release(facts, release, query, devices, arch)
    ]
    return sorted(judged, key=lambda candidate: _rank(candidate, query))


def _rank(candidate: Candidate, query: Query) -> tuple[object, ...]:
    closeness = -ORDER.index(candidate.verdict.name)
    newest = tuple(-field for field in key(candidate.torch))
    cuda = tuple(-field for field in key(candidate.cuda or "0"))
    last = candidate.variant == "cpu" and query.variant is None
    if not candidate.legal:
        return (1, closeness, newest, last, not candidate.pypi, cuda, candidate.variant)
    needs_package = candidate.verdict.name == FORWARD
    return (0, needs_package, newest, last, closeness, not candidate.pypi, cuda, candidate.variant)


def _of_release(
    facts: Facts, release: TorchRelease, query: Query, devices: list[Device], arch: HostArch
) -> list[Candidate]:
    variants = _variants(release, query, gpu=bool(devices))
    if variants:
        return [_judged(facts, release, variant, query, devices, arch) for variant in variants]
    name = query.variant or (query.cuda and _name_of(facts, query.cuda))
    return [Candidate(release.torch, name, [], _no_variant(release, name, facts), cuda=query.cuda)] if name else []


def _variants(release: TorchRelease, query: Query, *, gpu: bool) -> list[TorchVariant]:
    if query.variant is not None:
        return [variant for variant in release.variants if variant.variant == query.variant]
    if query.cuda is not None:
        return [variant for variant in release.variants if variant.cuda == query.cuda]
    gpu = gpu or query.driver is not None
    return [variant for variant in release.variants if variant.cuda is not None or not gpu]


def _name_of(facts: Facts, cuda: str) -> str:
    names = {v.variant for release in facts.matrix.torch for v in release.variants if v.cuda == cuda}
    return min(names, default=f"cu{cuda.replace('.', '')}")


def _no_variant(release: TorchRelease, name: str, facts: Facts) -> Verdict:
    variants = ", ".join(sorted(variant.variant for variant in release.variants))
    others = [other.torch for other in facts.matrix.torch if other.variant(name) is not None]
    where = f"; torch {_span(others)} has {name}" if others else f"; no torch release of the matrix has {name}"
    doubt = "" if release.complete else " as far as is known"
    reason = f"torch {release.torch} has no {name} wheels{doubt}, but {variants}{where}"
    return Verdict(NO_WHEEL, reason, _weak_list(release))


def _weak_list(release: TorchRelease) -> Weak:
    return unless(release.complete, f"the list of variants of torch {release.torch}")


def _span(versions: list[str]) -> str:
    low, high = min(versions, key=key), max(versions, key=key)
    return low if low == high else f"{low} - {high}"


def _judged(
    facts: Facts, release: TorchRelease, variant: TorchVariant, query: Query, devices: list[Device], arch: HostArch
) -> Candidate:
    build = next((build for build in variant.builds if build.arch == arch), None)
    pypi = release.pypi.get(arch) == variant.variant
    verdict = _published(release, variant, build, query.python, arch)
    if verdict is not None or build is None:
        verdict = verdict or _absent(release, variant, arch)
        return Candidate(release.torch, variant.variant, [], verdict, pypi, variant.cuda)
    name = f"torch {release.torch}+{variant.variant}"
    weak = (
        *unless(release.verified, f"the row of torch {release.torch}"),
        *unless(variant.verified and build.verified, f"the {arch} wheels of {name}"),
        *unless(variant.libraries_verified, f"the cuDNN, NCCL and triton versions of {name}"),
    )
    verdict = _node(facts, variant, build, query.driver, devices)
    pythons = [query.python] if query.python else _preferred(facts, build.python)
    verdict = verdict._replace(weak=union(verdict.weak, weak))
    return Candidate(release.torch, variant.variant, pythons, verdict, pypi, variant.cuda)


def _published(
    release: TorchRelease, variant: TorchVariant, build: Build | None, python: str | None, arch: HostArch
) -> Verdict | None:
    if build is None:
        return _absent(release, variant, arch)
    if python is None or python in build.python:
        return None
    pythons = ", ".join(sorted(build.python, key=python_key))
    reason = f"torch {release.torch}+{variant.variant} has no {arch} wheel for Python {python}, but for {pythons}"
    verified = build.verified and variant.verified
    return Verdict(NO_PYTHON, reason, unless(verified, f"the Pythons of torch {release.torch}+{variant.variant}"))


def _absent(release: TorchRelease, variant: TorchVariant, arch: HostArch) -> Verdict:
    name = f"{arch} wheels of torch {release.torch}+{variant.variant}"
    if arch in variant.unseen:
        return Verdict(NO_WHEEL, f"it is not known whether there are {name}, so they are not used", (f"the {name}",))
    return Verdict(NO_WHEEL, f"there are no {name}", _weak_list(release))


def _node(facts: Facts, variant: TorchVariant, build: Build, driver: str | None, devices: list[Device]) -> Verdict:
    each: list[Device | None] = [*devices] or [None]
    newest = facts.newest_branch(devices) if driver is None else None
    verdicts = [judge_gpu(facts, variant, build, device, driver, newest) for device in each]
    worst, culprit = min(zip(verdicts, each, strict=True), key=lambda pair: ORDER.index(pair[0].name))
    if worst.name != OK and len(each) > 1 and culprit is not None and culprit.label not in worst.reason:
        worst = worst._replace(reason=f"{culprit.label}: {worst.reason}")
    weak = union(*(verdict.weak for verdict in verdicts)) if worst.name in LEGAL else worst.weak
    if worst.name == OK and len(verdicts) > 1:
        reasons = list(dict.fromkeys(part for verdict in verdicts for part in verdict.reason.split("; ")))
        return Verdict(OK, "; ".join(reasons), weak)
    return worst._replace(weak=weak)


def _preferred(facts: Facts, pythons: list[str]) -> list[str]:
    return sorted(
        pythons,
        key=lambda python: (facts.matrix.base(python) is not None, not python.endswith("t"), python_key(python)),
        reverse=True,
    )
