"""The nearest things that can run, one axis at a time: another driver, variant, torch, Python, or fewer GPUs."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from envcheck.matrix.candidates import Candidate, candidates
from envcheck.matrix.facts import Device, Facts
from envcheck.matrix.model import HostArch
from envcheck.matrix.verdict import DROPPED, FORWARD, MINOR, NO_WHEEL, OK, TOO_OLD
from envcheck.matrix.versions import branch, key, python_key
from envcheck.matrix.wanted import Wanted

_WHOLE_DRIVER = 2


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """A legal cell, what must change for it, and its verdict."""

    cell: str
    change: str
    verdict: str


class _Search:
    """One question, asked again with an axis changed. Judging is pure; this only carries the question around."""

    def __init__(self, facts: Facts, wanted: Wanted, asked: list[Device], arch: HostArch, best: Candidate) -> None:
        self.facts, self.wanted, self.asked, self.arch, self.best = facts, wanted, asked, arch, best

    def legal(self, wanted: Wanted, asked: list[Device] | None = None) -> list[Candidate]:
        """Return what is legal for another question on the same host."""
        found = candidates(self.facts, wanted, self.asked if asked is None else asked, self.arch)
        return [candidate for candidate in found if candidate.legal]

    def pinned(self) -> Wanted:
        """Return the question narrowed to the torch and variant of the best candidate."""
        return self.wanted.but(torch=self.best.torch, variant=self.best.variant, cuda=None)


def alternatives(
    facts: Facts, wanted: Wanted, asked: list[Device], arch: HostArch, best: Candidate
) -> list[Alternative]:
    """Return the nearest legal alternatives; for a compat verdict those that make it native.

    For what runs as it is also the newer torch that a cuda-compat package would allow.
    """
    search = _Search(facts, wanted, asked, arch, best)
    if best.answer.verdict == OK:
        return list(_with_package(search))
    found = [*_drivers(search), *_smallest_upgrade(search), *_variants(search)]
    if not best.legal:
        found += [*_torches(search), *_pythons(search)]
        found = found or list(_torch_and_more(search))
        found += _fewer_gpus(search)
    elif best.answer.verdict == FORWARD:
        found += _without_package(search)
    else:
        found += _with_package(search)
    return _each_once(found)


def _each_once(found: list[Alternative]) -> list[Alternative]:
    """Drop what was offered already: the same cell under the same driver, in whatever words."""
    seen: dict[tuple[str, str], Alternative] = {}
    for row in found:
        seen.setdefault((row.cell, row.change.rpartition(": ")[2]), row)
    return list(seen.values())


def _made(candidate: Candidate, change: str) -> Alternative:
    return Alternative(cell=str(candidate.cells()[0]), change=change, verdict=candidate.answer.verdict)


def _drivers(search: _Search) -> Iterator[Alternative]:
    driver, best = search.wanted.driver, search.best
    if driver is None or best.answer.verdict not in (DROPPED, TOO_OLD, FORWARD, MINOR):
        return
    known = thresholds(search.facts, search.asked)
    newer = [version for version in known if key(version) > key(driver)]
    older = [version for version in reversed(known) if key(version) < key(driver)]
    goal = {OK} if best.answer.verdict == MINOR else {OK, MINOR}
    for goals in (goal, {OK}):
        found = _first(search, newer, goals) or (None if best.legal else _first(search, older, goals))
        if found is not None:
            version, candidate = found
            bound = f">= {version}" if key(version) > key(driver) else version
            yield _made(candidate, f"keep {best.variant}: driver {bound}")


def _smallest_upgrade(search: _Search) -> Iterator[Alternative]:
    """Offer the lowest newer driver under which anything that was asked for runs as it is."""
    driver = search.wanted.driver
    if driver is None or search.best.legal:
        return
    for version in thresholds(search.facts, search.asked):
        if key(version) <= key(driver) or not all(_is_listed(device, version) for device in search.asked):
            continue
        for candidate in search.legal(search.wanted.but(driver=version)):
            if candidate.cuda and candidate.answer.verdict in (OK, MINOR):
                yield _made(candidate, f"torch {candidate.torch} with {candidate.variant}: driver >= {version}")
                return


def _is_listed(device: Device, version: str) -> bool:
    """Return whether the branch is one that the GPU's facts list, as far as they list any, or a later one."""
    listed = device.gpu.first_driver if device.gpu is not None else {}
    return not listed or key(branch(version)) >= min(map(key, listed))


def _first(search: _Search, drivers: list[str], goals: set[str]) -> tuple[str, Candidate] | None:
    for driver in drivers:
        for candidate in search.legal(search.pinned().but(driver=driver)):
            if candidate.answer.verdict in goals:
                return driver, candidate
    return None


def thresholds(facts: Facts, asked: list[Device]) -> list[str]:
    """Return every driver at which some verdict can change, oldest first."""
    cuda = facts.matrix.cuda
    found = {row.floor for row in cuda.families} | {row.native_driver for row in cuda.minors}
    for gpu in facts.matrix.gpus:
        if gpu.cc in {device.cc for device in asked}:
            found |= set(gpu.first_driver.values()) | ({gpu.min_driver} if gpu.min_driver else set())
    return sorted((version for version in found if len(key(version)) >= _WHOLE_DRIVER), key=key)


def _variants(search: _Search) -> Iterator[Alternative]:
    best = search.best
    found = search.legal(search.wanted.but(variant=None, cuda=None))
    for candidate in found:
        better = not best.legal or candidate.answer.verdict == OK
        if better and candidate.torch == best.torch and candidate.variant != best.variant and candidate.cuda:
            keep = "the driver" if search.wanted.driver else f"torch {best.torch}"
            yield _made(candidate, f"keep {keep}: {candidate.variant}")
            return


def _torches(search: _Search) -> Iterator[Alternative]:
    if search.wanted.torch is None:
        return
    keep = search.wanted.variant or (f"CUDA {search.wanted.cuda}" if search.wanted.cuda else None)
    nearest = _nearest(search, search.legal(search.wanted.but(torch=None)))
    if nearest is not None:
        change = f"torch {nearest.torch}" if keep else f"torch {nearest.torch} with {nearest.variant}"
        yield _made(nearest, f"keep {keep}: {change}" if keep else change)


def _nearest(search: _Search, found: list[Candidate]) -> Candidate | None:
    order = sorted((release.torch for release in search.facts.matrix.torch), key=key)
    if search.best.torch not in order:
        return found[0] if found else None
    at = order.index(search.best.torch)
    return min(found, key=lambda candidate: abs(order.index(candidate.torch) - at), default=None)


def _pythons(search: _Search) -> Iterator[Alternative]:
    python = search.wanted.python
    if python is None:
        return
    for candidate in search.legal(search.pinned().but(python=None)):
        near = min(candidate.pythons, key=lambda other: _distance(python, other))
        moved = candidate._replace(pythons=[near])
        yield _made(moved, f"keep torch {candidate.torch}+{candidate.variant}: Python {near}")
        return


def _distance(python: str, other: str) -> tuple[int, ...]:
    minor, free = python_key(python)[1:]
    return (abs(python_key(other)[1] - minor), abs(python_key(other)[2] - free), -python_key(other)[1])


def _without_package(search: _Search) -> Iterator[Alternative]:
    for candidate in search.legal(search.wanted.but(torch=None, variant=None, cuda=None)):
        if candidate.answer.verdict in (OK, MINOR):
            yield _made(
                candidate, f"keep the driver, without cuda-compat: torch {candidate.torch} with {candidate.variant}"
            )
            return


def _with_package(search: _Search) -> Iterator[Alternative]:
    for candidate in search.legal(search.wanted):
        if candidate.answer.verdict == FORWARD and key(candidate.torch) > key(search.best.torch):
            yield _made(
                candidate, f"keep the driver, with cuda-compat: torch {candidate.torch} with {candidate.variant}"
            )
            return


def _torch_and_more(search: _Search) -> Iterator[Alternative]:
    wanted = search.wanted
    for changed, keep in (
        (wanted.but(torch=None, variant=None, cuda=None), "the driver" if wanted.driver else "the machine"),
        (wanted.but(torch=None, variant=None, cuda=None, python=None), "the GPU and driver"),
    ):
        nearest = _nearest(search, [candidate for candidate in search.legal(changed) if candidate.cuda])
        if nearest is not None:
            yield _made(
                nearest, f"keep {keep}: torch {nearest.torch} with {nearest.variant}, Python {nearest.pythons[0]}"
            )
            return


def _fewer_gpus(search: _Search) -> Iterator[Alternative]:
    if search.best.answer.verdict == NO_WHEEL and not search.asked:
        return
    if len(search.asked) > 1:
        for device in search.asked:
            rest = [other for other in search.asked if other is not device]
            for candidate in search.legal(search.wanted, rest)[:1]:
                yield _made(candidate, f"without the {device.label}")
    if search.asked and search.wanted.variant is None and search.wanted.cuda is None:
        for candidate in search.legal(search.wanted.but(variant="cpu"))[:1]:
            yield _made(candidate, "without the GPU: cpu")
