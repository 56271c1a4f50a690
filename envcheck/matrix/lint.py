"""What must hold between facts for answers that stand on them to be right, told from the file alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from envcheck.matrix.facts import Facts
from envcheck.matrix.gpus import find_gpu
from envcheck.matrix.model import Gpu, Matrix, TorchRelease, TorchVariant
from envcheck.matrix.versions import branch, key


class Finding(NamedTuple):
    """One thing that is wrong, and where."""

    where: str
    what: str


def lint(matrix: Matrix) -> list[Finding]:
    """Return all that is wrong with the facts and choices; an empty list is the promise of the file."""
    facts = Facts(matrix)
    return [
        *_sources(matrix),
        *_floors(facts),
        *_branches(facts),
        *(finding for gpu in matrix.gpus for finding in _gpu(facts, gpu)),
        *_releases(facts),
        *_choices(facts),
    ]


def _sources(matrix: Matrix) -> Iterator[Finding]:
    used: set[str] = set()
    for where, names in _named_sources(msgspec.to_builtins(matrix), "$"):
        used.update(names)
        for name in names:
            if name not in matrix.sources:
                yield Finding(where, f"its source {name} is not among `sources`")
    for name in sorted(set(matrix.sources) - used):
        yield Finding(f"$.sources.{name}", "no fact names this source")


def _named_sources(value: Any, where: str) -> Iterator[tuple[str, list[str]]]:
    if isinstance(value, dict):
        if isinstance(value.get("source"), list):
            yield where, value["source"]
        for name, item in value.items():
            yield from _named_sources(item, f"{where}.{name}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _named_sources(item, f"{where}[{index}]")


def _floors(facts: Facts) -> Iterator[Finding]:
    families = sorted(facts.families.values(), key=lambda row: key(row.major))
    for older, newer in itertools.pairwise(families):
        if key(older.floor) >= key(newer.floor):
            yield Finding(f"CUDA {newer.major}.x", f"floor {newer.floor} is not above {older.floor} of {older.major}.x")
    minors = sorted(facts.minors.values(), key=lambda row: key(row.cuda))
    for before, after in itertools.pairwise(minors):
        if key(before.native_driver) >= key(after.native_driver):
            yield Finding(f"CUDA {after.cuda}", f"driver {after.native_driver} is not above {before.cuda}'s")
    for row in minors:
        major, minor = row.cuda.split(".")
        family = facts.families.get(major)
        if family is None:
            yield Finding(f"CUDA {row.cuda}", f"there is no family {major}")
        # The floor of 11.x was set after 11.0 had shipped with an earlier driver.
        elif minor != "0" and key(row.native_driver) < key(family.floor):
            yield Finding(f"CUDA {row.cuda}", f"driver {row.native_driver} is below the family's floor {family.floor}")
        for name in row.forward_compat_branches:
            if key(name) >= key(branch(row.native_driver)):
                yield Finding(f"CUDA {row.cuda}", f"forward-compat branch {name} is not older than {row.native_driver}")


def _branches(facts: Facts) -> Iterator[Finding]:
    for older, newer in itertools.pairwise(facts.drivers):
        if key(older.cuda) >= key(newer.cuda):
            yield Finding(
                f"driver branch {newer.branch}", f"CUDA {newer.cuda} is not above {older.cuda} of {older.branch}"
            )
    dropped = [name for row in facts.drivers for name in row.drops]
    for name in sorted({name for name in dropped if dropped.count(name) > 1}):
        yield Finding("drivers", f"{name} is dropped by more than one branch")
    known = {row.branch for row in facts.drivers}
    for minor in facts.minors.values():
        for name in minor.forward_compat_branches:
            if name not in known:
                yield Finding(f"CUDA {minor.cuda}", f"forward-compat branch {name} is not among `drivers`")


def _gpu(facts: Facts, gpu: Gpu) -> Iterator[Finding]:
    capability = facts.capability(gpu.cc)
    if capability is None or capability.cc != gpu.cc:
        yield Finding(f"GPU {gpu.name}", f"compute capability {gpu.cc} is not among cuda.capabilities")
    known = {row.branch for row in facts.drivers}
    for name, first in gpu.first_driver.items():
        if branch(first) != name:
            yield Finding(f"GPU {gpu.name}", f"first driver {first} is not of branch {name}")
        if name not in known:
            yield Finding(f"GPU {gpu.name}", f"branch {name} is not among `drivers`")
        if gpu.min_driver is not None and key(first) < key(gpu.min_driver):
            yield Finding(f"GPU {gpu.name}", f"first driver {first} is below its lowest, {gpu.min_driver}")
    for name in (gpu.name, *gpu.aliases):
        found = find_gpu(facts.matrix, name)
        if found is not gpu:
            yield Finding(f"GPU {gpu.name}", f"the name {name} finds {found.name if found else 'nothing'}")


def _releases(facts: Facts) -> Iterator[Finding]:
    releases = sorted(facts.matrix.torch, key=lambda release: key(release.torch))
    for older, newer in itertools.pairwise(releases):
        if older.released > newer.released:
            yield Finding(f"torch {newer.torch}", f"released {newer.released}, before {older.torch}")
    for release in releases:
        yield from _companions(release, releases)
        yield from _pypi(release)
        for variant in release.variants:
            yield from _variant(facts, release, variant)


def _companions(release: TorchRelease, releases: list[TorchRelease]) -> Iterator[Finding]:
    where = f"torch {release.torch}"
    if release.torchvision is None:
        yield Finding(where, "it has no torchvision")
    for other in releases:
        if key(other.torch) < key(release.torch) and other.torchvision and release.torchvision:
            if key(other.torchvision) >= key(release.torchvision):
                yield Finding(where, f"torchvision {release.torchvision} is not above that of {other.torch}")
            if other.torchaudio is None and release.torchaudio is not None:
                yield Finding(where, f"it has a torchaudio although {other.torch} has none any more")


def _pypi(release: TorchRelease) -> Iterator[Finding]:
    for arch, name in release.pypi.items():
        variant = release.variant(name)
        if variant is None or not any(build.arch == arch for build in variant.builds):
            yield Finding(f"torch {release.torch}", f"PyPI's {arch} wheel is {name}, which has no {arch} build here")


def _variant(facts: Facts, release: TorchRelease, variant: TorchVariant) -> Iterator[Finding]:
    where = f"torch {release.torch}+{variant.variant}"
    if (variant.cuda is None) != (variant.variant == "cpu"):
        yield Finding(where, "cpu, and only cpu, has no CUDA")
    elif variant.cuda is not None and variant.cuda not in facts.minors:
        yield Finding(where, f"CUDA {variant.cuda} is not among cuda.minors")
    for build in variant.builds:
        for sm in build.sass or []:
            capability = facts.capability(sm)
            if sm not in facts.code:
                yield Finding(where, f"its code for {sm} is not among cuda.code")
            elif variant.cuda and capability and key(capability.min_cuda) > key(variant.cuda):
                yield Finding(where, f"CUDA {variant.cuda} cannot have built code for {sm} ({capability.min_cuda} can)")


def _choices(facts: Facts) -> Iterator[Finding]:
    for cell in facts.matrix.cells():
        if facts.matrix.base(cell.python) is None:
            yield Finding(f"image {cell}", f"there is no base for Python {cell.python}")
        release = facts.matrix.release(cell.torch)
        variant = release.variant(cell.variant) if release else None
        if variant is None or not any(cell.python in build.python for build in variant.builds):
            yield Finding(f"image {cell}", "no such wheel is in the matrix")
