"""Every combination a question leaves open, judged and ranked."""

from __future__ import annotations

from typing import NamedTuple

from envcheck.matrix.facts import Device, Facts
from envcheck.matrix.model import Build, Cell, HostArch, TorchRelease, TorchVariant
from envcheck.matrix.verdict import FORWARD, LEGAL, NO_PYTHON, NO_WHEEL, OK, ORDER, Answer, judge_gpu
from envcheck.matrix.versions import key, python_key
from envcheck.matrix.wanted import Wanted, matching


class Candidate(NamedTuple):
    """One torch and variant on one host arch, with the Pythons it is there for, best first."""

    torch: str
    variant: str
    pythons: list[str]
    answer: Answer
    pypi: bool = False
    cuda: str | None = None

    @property
    def legal(self) -> bool:
        """Whether it can run."""
        return self.answer.verdict in LEGAL

    def cells(self) -> list[Cell]:
        """Return its cells, best first."""
        return [Cell(torch=self.torch, variant=self.variant, python=python) for python in self.pythons]


def candidates(facts: Facts, wanted: Wanted, asked: list[Device], arch: HostArch) -> list[Candidate]:
    """Return all candidates, best first.

    What runs as the node is comes first, then what needs a cuda-compat package installed, then what cannot run. Within
    each: newest torch, native before minor-version compatibility, PyPI's own variant before others.
    """
    found = [
        candidate
        for release in matching(facts.matrix.torch, wanted.torch)
        for candidate in _of_release(facts, release, wanted, asked, arch)
    ]
    return sorted(found, key=lambda candidate: _rank(candidate, wanted))


def _rank(candidate: Candidate, wanted: Wanted) -> tuple[object, ...]:
    verdict = -ORDER.index(candidate.answer.verdict)
    newest = tuple(-field for field in key(candidate.torch))
    cuda = tuple(-field for field in key(candidate.cuda or "0"))
    last = candidate.variant == "cpu" and wanted.variant is None
    if not candidate.legal:
        return (1, verdict, newest, last, not candidate.pypi, cuda, candidate.variant)
    needs_package = candidate.answer.verdict == FORWARD
    return (0, needs_package, newest, last, verdict, not candidate.pypi, cuda, candidate.variant)


def _of_release(
    facts: Facts, release: TorchRelease, wanted: Wanted, asked: list[Device], arch: HostArch
) -> list[Candidate]:
    found = [
        _judged(facts, release, variant, wanted, asked, arch) for variant in _variants(release, wanted, gpu=bool(asked))
    ]
    name = wanted.variant or (wanted.cuda and _name_of(facts, wanted.cuda))
    return found or (
        [Candidate(release.torch, name, [], _never(release, name, facts), cuda=wanted.cuda)] if name else []
    )


def _variants(release: TorchRelease, wanted: Wanted, *, gpu: bool) -> list[TorchVariant]:
    if wanted.variant is not None:
        return [variant for variant in release.variants if variant.variant == wanted.variant]
    if wanted.cuda is not None:
        return [variant for variant in release.variants if variant.cuda == wanted.cuda]
    gpu = gpu or wanted.driver is not None
    return [variant for variant in release.variants if variant.cuda is not None or not gpu]


def _name_of(facts: Facts, cuda: str) -> str:
    names = {v.variant for release in facts.matrix.torch for v in release.variants if v.cuda == cuda}
    return min(names, default=f"cu{cuda.replace('.', '')}")


def _never(release: TorchRelease, name: str, facts: Facts) -> Answer:
    has = ", ".join(sorted(variant.variant for variant in release.variants))
    others = [other.torch for other in facts.matrix.torch if other.variant(name) is not None]
    where = f"; {name} is there for torch {_span(others)}" if others else ""
    known = "" if release.complete else " as far as is known"
    return Answer(NO_WHEEL, f"torch {release.torch} has no {name} wheels{known}, but {has}{where}", release.complete)


def _span(versions: list[str]) -> str:
    low, high = min(versions, key=key), max(versions, key=key)
    return low if low == high else f"{low} - {high}"


def _judged(
    facts: Facts, release: TorchRelease, variant: TorchVariant, wanted: Wanted, asked: list[Device], arch: HostArch
) -> Candidate:
    build = next((build for build in variant.builds if build.arch == arch), None)
    pypi = release.pypi.get(arch) == variant.variant
    answer = _published(release, variant, build, wanted.python, arch)
    if answer is not None or build is None:
        answer = answer or _absent(release, variant, arch)
        return Candidate(release.torch, variant.variant, [], answer, pypi, variant.cuda)
    verified = release.verified and variant.verified and build.verified
    answer = _node(facts, variant, build, wanted.driver, asked)
    pythons = [wanted.python] if wanted.python else _preferred(facts, build.python)
    answer = answer._replace(verified=answer.verified and verified)
    return Candidate(release.torch, variant.variant, pythons, answer, pypi, variant.cuda)


def _published(
    release: TorchRelease, variant: TorchVariant, build: Build | None, python: str | None, arch: HostArch
) -> Answer | None:
    if build is None:
        return _absent(release, variant, arch)
    if python is None or python in build.python:
        return None
    there = ", ".join(sorted(build.python, key=python_key))
    reason = f"torch {release.torch}+{variant.variant} has no {arch} wheel for Python {python}, but for {there}"
    return Answer(NO_PYTHON, reason, build.verified and variant.verified)


def _absent(release: TorchRelease, variant: TorchVariant, arch: HostArch) -> Answer:
    name = f"{arch} wheels of torch {release.torch}+{variant.variant}"
    if arch in variant.unseen:
        return Answer(NO_WHEEL, f"nobody has looked whether there are {name}: not counted on", verified=False)
    return Answer(NO_WHEEL, f"there are no {name}", release.complete)


def _node(facts: Facts, variant: TorchVariant, build: Build, driver: str | None, asked: list[Device]) -> Answer:
    each: list[Device | None] = [*asked] or [None]
    newest = facts.newest_branch(asked) if driver is None else None
    answers = [judge_gpu(facts, variant, build, device, driver, newest) for device in each]
    worst, culprit = min(zip(answers, each, strict=True), key=lambda pair: ORDER.index(pair[0].verdict))
    if worst.verdict != OK and len(each) > 1 and culprit is not None and culprit.label not in worst.reason:
        worst = worst._replace(reason=f"{culprit.label}: {worst.reason}")
    verified = all(answer.verified for answer in answers) if worst.verdict in LEGAL else worst.verified
    if worst.verdict == OK and len(answers) > 1:
        reasons = list(dict.fromkeys(part for answer in answers for part in answer.reason.split("; ")))
        return Answer(OK, "; ".join(reasons), verified)
    return worst._replace(verified=verified)


def _preferred(facts: Facts, pythons: list[str]) -> list[str]:
    return sorted(
        pythons,
        key=lambda python: (facts.matrix.base(python) is not None, not python.endswith("t"), python_key(python)),
        reverse=True,
    )
