"""What the facts must be: consistent with themselves."""

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from envcheck.matrix.facts.lookup import Facts, find_gpu
from envcheck.matrix.facts.model import (
    Cell,
    GpuModel,
    Matrix,
    TorchRelease,
    TorchVariant,
    branch,
    key,
)


class Problem(NamedTuple):
    """A contradiction or gap in the facts, and where it is."""

    where: str
    what: str


def lint(matrix: Matrix) -> list[Problem]:
    """Return all problems of the facts and choices; a consistent file has none."""
    facts = Facts(matrix)
    return [
        *sources(matrix, matrix.sources),
        *_floors(facts),
        *_branches(facts),
        *(problem for gpu in matrix.gpus for problem in _gpu(facts, gpu)),
        *_releases(facts),
        *_choices(facts),
    ]


def sources(document: msgspec.Struct, listed: dict[str, str]) -> Iterator[Problem]:
    """Find rows whose source is not among those `listed`, and listed ones that no row names."""
    used: set[str] = set()
    for where, names in _named_sources(msgspec.to_builtins(document), "$"):
        used.update(names)
        for name in names:
            if name not in listed:
                yield Problem(where, f"its source {name} is not among `sources`")
    for name in sorted(set(listed) - used):
        yield Problem(f"$.sources.{name}", "no fact names this source")


def _named_sources(value: Any, where: str) -> Iterator[tuple[str, list[str]]]:
    if isinstance(value, dict):
        if isinstance(value.get("source"), list):
            yield where, value["source"]
        for name, item in value.items():
            yield from _named_sources(item, f"{where}.{name}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _named_sources(item, f"{where}[{index}]")


def _floors(facts: Facts) -> Iterator[Problem]:
    families = sorted(facts.families.values(), key=lambda row: key(row.major))
    for older, newer in itertools.pairwise(families):
        if key(older.floor) >= key(newer.floor):
            yield Problem(f"CUDA {newer.major}.x", f"floor {newer.floor} is not above {older.floor} of {older.major}.x")
    minors = sorted(facts.minors.values(), key=lambda row: key(row.cuda))
    for before, after in itertools.pairwise(minors):
        if key(before.native_driver) >= key(after.native_driver):
            yield Problem(f"CUDA {after.cuda}", f"driver {after.native_driver} is not above {before.cuda}'s")
    for row in minors:
        major, minor = row.cuda.split(".")
        family = facts.families.get(major)
        if family is None:
            yield Problem(f"CUDA {row.cuda}", f"there is no family {major}")
        # The floor of 11.x was set after 11.0 had shipped with an earlier driver.
        elif minor != "0" and key(row.native_driver) < key(family.floor):
            yield Problem(f"CUDA {row.cuda}", f"driver {row.native_driver} is below the family's floor {family.floor}")
        for name in row.forward_compat_branches:
            if key(name) >= key(branch(row.native_driver)):
                yield Problem(f"CUDA {row.cuda}", f"forward-compat branch {name} is not older than {row.native_driver}")


def _branches(facts: Facts) -> Iterator[Problem]:
    for older, newer in itertools.pairwise(facts.drivers):
        if key(older.cuda) >= key(newer.cuda):
            said = f"CUDA {newer.cuda} is not above {older.cuda} of {older.branch}"
            yield Problem(f"driver branch {newer.branch}", said)
    dropped = [name for row in facts.drivers for name in row.drops]
    for name in sorted({name for name in dropped if dropped.count(name) > 1}):
        yield Problem("drivers", f"{name} is dropped by more than one branch")
    branches = {row.branch for row in facts.drivers}
    for minor in facts.minors.values():
        for name in minor.forward_compat_branches:
            if name not in branches:
                yield Problem(f"CUDA {minor.cuda}", f"forward-compat branch {name} is not among `drivers`")


def _gpu(facts: Facts, gpu: GpuModel) -> Iterator[Problem]:
    capability = facts.capability(gpu.cc)
    if capability is None or capability.cc != gpu.cc:
        yield Problem(f"GPU {gpu.name}", f"compute capability {gpu.cc} is not among cuda.capabilities")
    branches = {row.branch for row in facts.drivers}
    for name, first in gpu.first_driver.items():
        if branch(first) != name:
            yield Problem(f"GPU {gpu.name}", f"first driver {first} is not of branch {name}")
        if name not in branches:
            yield Problem(f"GPU {gpu.name}", f"branch {name} is not among `drivers`")
        if gpu.min_driver is not None and key(first) < key(gpu.min_driver):
            yield Problem(f"GPU {gpu.name}", f"first driver {first} is below its lowest, {gpu.min_driver}")
    for name in (gpu.name, *gpu.aliases):
        match = find_gpu(facts.matrix, name)
        if match is not gpu:
            yield Problem(f"GPU {gpu.name}", f"the name {name} finds {match.name if match else 'nothing'}")


def _releases(facts: Facts) -> Iterator[Problem]:
    releases = sorted(facts.matrix.torch, key=lambda release: key(release.torch))
    for older, newer in itertools.pairwise(releases):
        if older.released > newer.released:
            yield Problem(f"torch {newer.torch}", f"released {newer.released}, before {older.torch}")
    for release in releases:
        yield from _companions(release, releases)
        for arch, name in release.pypi.items():
            wheel = release.variant(name)
            if wheel is None or not any(build.arch == arch for build in wheel.builds):
                yield Problem(
                    f"torch {release.torch}", f"PyPI's {arch} wheel is {name}, which has no {arch} build here"
                )
        for variant in release.variants:
            yield from _variant(facts, release, variant)


def _companions(release: TorchRelease, releases: list[TorchRelease]) -> Iterator[Problem]:
    where = f"torch {release.torch}"
    if release.torchvision is None:
        yield Problem(where, "it has no torchvision")
    for other in releases:
        if key(other.torch) < key(release.torch) and other.torchvision and release.torchvision:
            if key(other.torchvision) >= key(release.torchvision):
                yield Problem(where, f"torchvision {release.torchvision} is not above that of {other.torch}")
            if other.torchaudio is None and release.torchaudio is not None:
                yield Problem(where, f"it has a torchaudio, although {other.torch} has none")


def _variant(facts: Facts, release: TorchRelease, variant: TorchVariant) -> Iterator[Problem]:
    where = f"torch {release.torch}+{variant.variant}"
    if (variant.cuda is None) != (variant.variant == "cpu"):
        yield Problem(where, "cpu, and only cpu, has no CUDA")
    elif variant.cuda is not None and variant.cuda not in facts.minors:
        yield Problem(where, f"CUDA {variant.cuda} is not among cuda.minors")
    for build in variant.builds:
        for sm in build.sass or []:
            capability = facts.capability(sm)
            if sm not in facts.code:
                yield Problem(where, f"its code for {sm} is not among cuda.code")
            elif variant.cuda and capability and key(capability.min_cuda) > key(variant.cuda):
                yield Problem(where, f"CUDA {variant.cuda} cannot have built code for {sm} ({capability.min_cuda} can)")


def _choices(facts: Facts) -> Iterator[Problem]:
    for choice in facts.matrix.images:
        where = f"image torch{choice.torch}-{'-'.join(choice.variants)}"
        lists: dict[str, list[str]] = {"variants": choice.variants, "python": choice.python}
        lists["targets"] = [*choice.targets]
        for name, values in lists.items():
            if not values:
                yield Problem(where, f"`{name}` is empty: it publishes nothing")
            for value in sorted({value for value in values if values.count(value) > 1}):
                yield Problem(where, f"{value} appears twice in `{name}`")
    for choice in facts.matrix.images:
        for cell, arch in itertools.product(choice.cells(), choice.more_archs):
            release = facts.matrix.release(cell.torch)
            variant = release.variant(cell.variant) if release else None
            builds = [build.python for build in variant.builds if build.arch == arch] if variant else []
            if arch == "x86_64" or not any(cell.python in pythons for pythons in builds):
                yield Problem(f"image {cell}", f"no wheel for {arch}: leave it out of `more_archs`")
    for cell, rows in Counter(cell for choice in facts.matrix.images for cell in set(choice.cells())).items():
        if rows > 1:
            yield Problem(f"image {cell}", "more than one row of `images` publishes it")
        yield from _cell(facts, cell)


def _cell(facts: Facts, cell: Cell) -> Iterator[Problem]:
    if facts.matrix.base(cell.python) is None:
        pythons = ", ".join(base.python for base in facts.matrix.bases)
        yield Problem(f"image {cell}", f"there is no base for Python {cell.python}; bases have {pythons}")
    release = facts.matrix.release(cell.torch)
    if release is None:
        near = [row.torch for row in facts.matrix.torch if row.torch.startswith(f"{cell.torch}.")]
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        yield Problem(f"image {cell}", f"torch {cell.torch} is not under `torch`{hint}")
        return
    builds = {variant.variant: {p for build in variant.builds for p in build.python} for variant in release.variants}
    if cell.variant not in builds:
        yield Problem(f"image {cell}", f"torch {cell.torch} has no {cell.variant}; it has {', '.join(builds)}")
    elif cell.python not in builds[cell.variant]:
        pythons = ", ".join(sorted(builds[cell.variant], key=key))
        yield Problem(f"image {cell}", f"no wheel for Python {cell.python}; {cell.variant} has {pythons}")
