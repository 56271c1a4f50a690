"""List, judge and rank every combination that a query allows."""

import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from envcheck.matrix.facts.lookup import Device, Facts
from envcheck.matrix.facts.model import Build, Cell, HostArch, TorchRelease, TorchVariant, branch, key, python_key
from envcheck.matrix.resolver.query import Query, matching
from envcheck.matrix.resolver.verdict import (
    DROPPED,
    FORWARD,
    LEGAL,
    MINOR,
    NO_PYTHON,
    NO_WHEEL,
    OK,
    ORDER,
    TOO_OLD,
    Verdict,
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
    return (0, candidate.verdict.name == FORWARD, newest, last, closeness, not candidate.pypi, cuda, candidate.variant)


def _of_release(
    facts: Facts, release: TorchRelease, query: Query, devices: list[Device], arch: HostArch
) -> list[Candidate]:
    variants = _variants(release, query, gpu=bool(devices))
    if variants:
        return [_judged(facts, release, variant, query, devices, arch) for variant in variants]
    named = {v.variant for each in facts.matrix.torch for v in each.variants if v.cuda == query.cuda}
    name = query.variant or (query.cuda and min(named, default=f"cu{query.cuda.replace('.', '')}"))
    return [Candidate(release.torch, name, [], _no_variant(release, name, facts), cuda=query.cuda)] if name else []


def _variants(release: TorchRelease, query: Query, *, gpu: bool) -> list[TorchVariant]:
    if query.variant is not None:
        return [variant for variant in release.variants if variant.variant == query.variant]
    if query.cuda is not None:
        return [variant for variant in release.variants if variant.cuda == query.cuda]
    return [variant for variant in release.variants if variant.cuda is not None or not (gpu or query.driver)]


def _no_variant(release: TorchRelease, name: str, facts: Facts) -> Verdict:
    variants = ", ".join(sorted(variant.variant for variant in release.variants))
    others = sorted((other.torch for other in facts.matrix.torch if other.variant(name) is not None), key=key)
    shown = "if nvidia-smi shows it, give its Driver Version instead, with --driver"
    where = (
        f"; torch {' - '.join(dict.fromkeys([others[0], others[-1]]))} has {name}"
        if others
        else f"; no torch release of the matrix has {name} ({shown})"
    )
    doubt = "" if release.complete else " as far as is known"
    reason = f"torch {release.torch} has no {name} wheels{doubt}, but {variants}{where}"
    return Verdict(NO_WHEEL, reason, unless(release.complete, f"the list of variants of torch {release.torch}"))


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
    pythons = sorted(
        [query.python] if query.python else build.python,
        key=lambda python: (facts.matrix.base(python) is not None, not python.endswith("t"), python_key(python)),
        reverse=True,
    )
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
    weak = unless(release.complete, f"the list of variants of torch {release.torch}")
    return Verdict(NO_WHEEL, f"there are no {name}", weak)


def _node(facts: Facts, variant: TorchVariant, build: Build, driver: str | None, devices: list[Device]) -> Verdict:
    each: list[Device | None] = [*devices] or [None]
    newest = facts.newest_branch(devices) if driver is None else None
    dropped = " and ".join(device.label for device in devices if newest and facts.newest_branch([device]) == newest)
    verdicts = [judge_gpu(facts, variant, build, device, driver, newest, dropped) for device in each]
    worst, culprit = min(zip(verdicts, each, strict=True), key=lambda pair: ORDER.index(pair[0].name))
    if worst.name != OK and len(each) > 1 and culprit is not None and culprit.label not in worst.reason:
        worst = worst._replace(reason=f"{culprit.label}: {worst.reason}")
    weak = union(*(verdict.weak for verdict in verdicts)) if worst.name in LEGAL else worst.weak
    if worst.name in LEGAL and len(verdicts) > 1:
        end = worst.reason.rpartition("; ")[2]  # the driver, which all share
        parts = dict.fromkeys(part for verdict in verdicts for part in verdict.reason.split("; ") if part != end)
        return Verdict(worst.name, "; ".join([*parts, end]), weak)
    return worst._replace(weak=weak)


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """A legal cell, what must change for it, and its verdict."""

    cell: str
    change: str
    verdict: str


class _Search:
    """A query to repeat with one axis changed, and what does not change between the repeats."""

    def __init__(
        self, facts: Facts, query: Query, devices: list[Device], arch: HostArch, ranking: list[Candidate]
    ) -> None:
        self.facts, self.query, self.devices, self.arch = facts, query, devices, arch
        self.ranking, self.best = ranking, ranking[0]

    def legal(self, query: Query, devices: list[Device] | None = None) -> list[Candidate]:
        """Return the legal candidates of another query on the same host."""
        judged = candidates(self.facts, query, self.devices if devices is None else devices, self.arch)
        return [candidate for candidate in judged if candidate.legal]

    def pinned(self) -> Query:
        """Return the query narrowed to the torch and variant of the best candidate."""
        return self.query.replace(torch=self.best.torch, variant=self.best.variant, cuda=None)


def alternatives(
    facts: Facts, query: Query, devices: list[Device], arch: HostArch, ranking: list[Candidate]
) -> list[Alternative]:
    """Return the nearest legal alternatives to the best of `ranking`; for a compat verdict, those that make it native.

    If the best candidate already runs natively, return the newer torch that a cuda-compat package would allow.
    """
    search = _Search(facts, query, devices, arch, ranking)
    best = search.best
    if best.verdict.name == OK:
        return list(_with_package(search))
    offers = [*_drivers(search), *_smallest_upgrade(search), *_other_variants(search)]
    if not best.legal:
        offers += [*_torches(search), *_pythons(search)]
        if not any(o.verdict in (OK, MINOR) and "driver >=" not in o.change and ".x:" not in o.change for o in offers):
            offers += _as_it_is(search)
        offers += _fewer_gpus(search)
    elif best.verdict.name == FORWARD:
        offers += _as_it_is(search)
    else:
        offers += _with_package(search)
    return _without_repeats(offers)


def _without_repeats(offers: list[Alternative]) -> list[Alternative]:
    """Keep the first offer of each cell and driver, whatever its words are."""
    first: dict[tuple[str, str], Alternative] = {}
    for offer in offers:
        first.setdefault((offer.cell, offer.change.rpartition(": ")[2]), offer)
    return list(first.values())


def _alternative(candidate: Candidate, change: str) -> Alternative:
    return Alternative(cell=str(candidate.cells()[0]), change=change, verdict=candidate.verdict.name)


def _nearest_of(fitting: Iterable[Candidate], change: str) -> Iterator[Alternative]:
    """Yield the first of the candidates; `change` has it as {0}."""
    for candidate in itertools.islice(fitting, 1):
        yield _alternative(candidate, change.format(candidate))


def _drivers(search: _Search) -> Iterator[Alternative]:
    driver, best = search.query.driver, search.best
    if driver is None or best.verdict.name not in (DROPPED, TOO_OLD, FORWARD, MINOR):
        return
    drivers = thresholds(search.facts, search.devices)
    newer = [version for version in drivers if key(version) > key(driver)]
    older = [version for version in reversed(drivers) if key(version) < key(driver)]
    goal = {OK} if best.verdict.name == MINOR else {OK, MINOR}
    for goals in (goal, {OK}):
        match = _first(search, newer, goals) or (None if best.legal else _first(search, older, goals))
        if match is not None:
            version, candidate = match
            bound = f">= {version}" if key(version) > key(driver) else version
            yield _alternative(candidate, f"keep {best.variant}: driver {bound}")


def _smallest_upgrade(search: _Search) -> Iterator[Alternative]:
    """Offer the lowest newer driver under which a candidate of the query runs without cuda-compat."""
    driver = search.query.driver
    if driver is None or search.best.legal:
        return
    for version in thresholds(search.facts, search.devices):
        # A GPU's facts begin with its first branch.
        listed = (min(map(key, gpu.first_driver), default=()) for d in search.devices if (gpu := d.gpu))
        if key(version) <= key(driver) or any(key(branch(version)) < first for first in listed):
            continue
        legal = search.legal(search.query.replace(driver=version))
        usable = [candidate for candidate in legal if candidate.cuda and candidate.verdict.name in (OK, MINOR)]
        if usable:
            yield from _nearest_of(usable, f"torch {{0.torch}} with {{0.variant}}: driver >= {version}")
            return


def _first(search: _Search, drivers: list[str], goals: set[str]) -> tuple[str, Candidate] | None:
    for driver in drivers:
        for candidate in search.legal(search.pinned().replace(driver=driver)):
            if candidate.verdict.name in goals:
                return driver, candidate
    return None


def thresholds(facts: Facts, devices: list[Device]) -> list[str]:
    """Return every driver at which some verdict can change, oldest first; none before a GPU's first known one."""
    cuda = facts.matrix.cuda
    drivers = {row.floor for row in cuda.families} | {row.native_driver for row in cuda.minors}
    for gpu in facts.matrix.gpus:
        if gpu.cc in {device.cc for device in devices}:
            drivers |= set(gpu.first_driver.values()) | ({gpu.min_driver} if gpu.min_driver else set())
    whole = (version for version in drivers if "." in version)  # a branch is no driver
    return sorted((version for version in whole if not any(_is_before(gpu, version) for gpu in devices)), key=key)


def _is_before(device: Device, version: str) -> bool:
    """Return whether a driver is older than the first known one for the GPU in its branch, or in any."""
    if device.gpu is None:
        return False
    least = device.gpu.first_driver.get(branch(version), None if device.gpu.first_driver else device.gpu.min_driver)
    return least is not None and key(version) < key(least)


def _other_variants(search: _Search) -> Iterator[Alternative]:
    best, keep = search.best, "the driver" if search.query.driver else f"torch {search.best.torch}"
    others = [c for c in search.legal(search.query.replace(variant=None, cuda=None)) if c.cuda]
    if best.verdict.name == NO_WHEEL and search.query.torch is None:  # no torch has this CUDA, "12.3": one of its major
        alike = [c for c in others if c.variant[:4] == best.variant[:4]][:1]
        older = (c for c in alike if c.torch != best.torch)
        yield from _nearest_of(older, f"keep CUDA {best.variant[2:4]}.x: torch {{0.torch}} with {{0.variant}}")
    same = (c for c in others if c.torch == best.torch and c.variant != best.variant)
    better = (c for c in same if not best.legal or c.verdict.name == OK)
    yield from _nearest_of(better, f"keep {keep}: {{0.variant}}")


def _torches(search: _Search) -> Iterator[Alternative]:
    if search.query.torch is None:
        return
    keep = search.query.variant or (f"CUDA {search.query.cuda}" if search.query.cuda else None)
    nearest = _nearest(search, search.legal(search.query.replace(torch=None)))
    if nearest is not None:
        change = f"torch {nearest.torch}" if keep else f"torch {nearest.torch} with {nearest.variant}"
        yield _alternative(nearest, f"keep {keep}: {change}" if keep else change)


def _nearest(search: _Search, legal: list[Candidate]) -> Candidate | None:
    order = sorted((release.torch for release in search.facts.matrix.torch), key=key)
    if search.best.torch not in order:
        return legal[0] if legal else None
    at = order.index(search.best.torch)
    return min(legal, key=lambda candidate: abs(order.index(candidate.torch) - at), default=None)


def _pythons(search: _Search) -> Iterator[Alternative]:
    python = search.query.python
    if python is None:
        return
    _, minor, free = python_key(python)
    for candidate in search.legal(search.pinned().replace(python=None)):
        keys = {other: python_key(other) for other in candidate.pythons}
        near = min(keys, key=lambda other: (abs(keys[other][1] - minor), abs(keys[other][2] - free), -keys[other][1]))
        moved = candidate._replace(pythons=[near])
        yield _alternative(moved, f"keep torch {candidate.torch}+{candidate.variant}: Python {near}")
        return


def _with_package(search: _Search) -> Iterator[Alternative]:
    newer = (c for c in search.ranking if c.verdict.name == FORWARD and key(c.torch) > key(search.best.torch))
    return _nearest_of(newer, "keep the driver, with cuda-compat: torch {0.torch} with {0.variant}")


def _as_it_is(search: _Search) -> Iterator[Alternative]:
    """Offer what runs on the node as it is, without another driver or cuda-compat; with another Python if it must."""
    query = search.query.replace(torch=None, variant=None, cuda=None)
    keep = "driver" if query.driver else "machine"
    for changed in (query, query.replace(python=None)):
        usable = [c for c in search.legal(changed) if c.cuda and c.verdict.name in (OK, MINOR)]
        nearest = usable[0] if search.best.legal and usable else _nearest(search, usable)
        if nearest is not None:
            keep += ", without cuda-compat" if search.best.legal else ""
            python = f", Python {nearest.pythons[0]}" if changed is not query else ""
            change = f"keep the {keep}: torch {nearest.torch} with {nearest.variant}{python}"
            yield _alternative(nearest, change)
            return


def _fewer_gpus(search: _Search) -> Iterator[Alternative]:
    if search.best.verdict.name == NO_WHEEL and not search.devices:
        return
    for device in search.devices if len(search.devices) > 1 else ():
        remaining = [other for other in search.devices if other is not device]
        yield from _nearest_of(search.legal(search.query, remaining), f"without the {device.label}")
    if search.devices and search.query.variant is None and search.query.cuda is None:
        yield from _nearest_of(search.legal(search.query.replace(variant="cpu")), "without the GPU: cpu")
