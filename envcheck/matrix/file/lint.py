"""What matrix.yaml must be: consistent with itself, and in one form, one row a line where it fits, for short diffs."""

import itertools
import json
import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import structs

from envcheck.matrix.facts.lookup import Facts, find_gpu
from envcheck.matrix.facts.model import (
    Build,
    Cell,
    GpuModel,
    HostArch,
    ImageChoice,
    Matrix,
    TorchRelease,
    TorchVariant,
    branch,
    key,
    python_key,
)

HEADER: Final = """\
# yaml-language-server: $schema=envcheck/matrix/file/matrix.schema.json
# Facts first, each with its source (a key of `sources`); choices (`bases`, `images`) last. Versions are strings.
# A fact with one weak source says `verified: false`. `envcheck matrix check` checks this form.
"""
_WIDTH: Final = 120
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.+/-]*( [A-Za-z0-9_.+/-]+)*")
_RESERVED: Final = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
_LAST: Final = (
    *("verified", "sass_verified", "driver_verified", "libraries_verified", "built_for_verified", "code_verified"),
    *("note", "source"),
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
        yield from _pypi(release)
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


def _pypi(release: TorchRelease) -> Iterator[Problem]:
    for arch, name in release.pypi.items():
        variant = release.variant(name)
        if variant is None or not any(build.arch == arch for build in variant.builds):
            yield Problem(f"torch {release.torch}", f"PyPI's {arch} wheel is {name}, which has no {arch} build here")


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
            if arch == "x86_64" or not _has_build(facts.matrix, cell, arch):
                yield Problem(f"image {cell}", f"no wheel for {arch}: leave it out of `more_archs`")
    for cell, rows in Counter(cell for choice in facts.matrix.images for cell in set(choice.cells())).items():
        if rows > 1:
            yield Problem(f"image {cell}", "more than one row of `images` publishes it")
        yield from _cell(facts, cell)


def _has_build(matrix: Matrix, cell: Cell, arch: HostArch) -> bool:
    release = matrix.release(cell.torch)
    variant = release.variant(cell.variant) if release else None
    return variant is not None and any(b.arch == arch and cell.python in b.python for b in variant.builds)


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


def canonical(matrix: Matrix) -> Matrix:
    """Return the same facts and choices in the order of the file."""
    cuda = matrix.cuda
    return structs.replace(
        matrix,
        sources=dict(sorted(matrix.sources.items())),
        cuda=structs.replace(
            cuda,
            families=sorted(cuda.families, key=lambda row: key(row.major)),
            minors=sorted(cuda.minors, key=lambda row: key(row.cuda)),
            capabilities=sorted(cuda.capabilities, key=lambda row: key(row.cc)),
            code=sorted(cuda.code, key=lambda row: key(row.sm)),
            base_images=sorted(cuda.base_images, key=lambda row: key(row.image)),
        ),
        drivers=sorted(matrix.drivers, key=lambda row: key(row.branch)),
        gpus=sorted(matrix.gpus, key=lambda row: (key(row.cc), row.name)),
        torch=[_release_in_order(row) for row in sorted(matrix.torch, key=lambda row: key(row.torch))],
        bases=sorted(matrix.bases, key=lambda row: python_key(row.python)),
        images=sorted((_choice(row) for row in matrix.images), key=lambda row: (key(row.torch), row.variants)),
    )


def _release_in_order(release: TorchRelease) -> TorchRelease:
    variants = sorted(release.variants, key=lambda row: row.variant)
    return structs.replace(release, variants=[_variant_in_order(row) for row in variants])


def _variant_in_order(variant: TorchVariant) -> TorchVariant:
    builds = sorted(variant.builds, key=lambda row: row.arch, reverse=True)
    return structs.replace(variant, builds=[_build(row) for row in builds])


def _build(build: Build) -> Build:
    sass = None if build.sass is None else sorted(build.sass, key=key)
    return structs.replace(build, python=sorted(build.python, key=python_key), sass=sass)


def _choice(choice: ImageChoice) -> ImageChoice:
    return structs.replace(choice, variants=sorted(choice.variants), python=sorted(choice.python, key=python_key))


def dump(matrix: Matrix) -> str:
    """Return the text of matrix.yaml. Loading it gives `canonical(matrix)`; dumping that gives the same bytes."""
    return text(canonical(matrix), HEADER)


def text(document: msgspec.Struct, header: str) -> str:
    """Return a file of facts: the comment `header`, then each table of `document`, a row a line where it fits."""
    lines: list[str] = []
    for name, value in _ordered(msgspec.to_builtins(document)).items():
        lines.append("")
        if isinstance(value, (dict, list)):
            lines.append(f"{name}:")
            _block(value, 2, lines)
        else:
            lines.append(f"{name}: {_flow(value)}")
    return header + "\n".join(lines) + "\n"


def _ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _ordered(value[name]) for name in sorted(value, key=lambda name: _place(name, value[name]))}
    return [_ordered(item) for item in value] if isinstance(value, list) else value


def _place(name: str, value: Any) -> int:
    """Return a key's place in its row: a note and the sources after the facts, rows within a row after all."""
    return _LAST.index(name) if name in _LAST else len(_LAST) if _nests(value) else -1


def _block(value: dict[str, Any] | list[Any], indent: int, lines: list[str]) -> None:
    pad = " " * indent
    if isinstance(value, list):
        for item in value:
            _item(item, indent, lines)
        return
    for name, item in value.items():
        if _nests(item):
            lines.append(f"{pad}{_flow(name)}:")
            _block(item, indent + 2, lines)
        else:
            lines.extend(_wrapped(f"{pad}{_flow(name)}: ", item, indent + 2))


def _item(item: Any, indent: int, lines: list[str]) -> None:
    line = f"{' ' * indent}- {_flow(item)}"
    if not isinstance(item, dict) or (len(line) <= _WIDTH and not _nests(item)):
        lines.append(line)
        return
    start = len(lines)
    _block(item, indent + 2, lines)
    lines[start] = f"{' ' * indent}- {lines[start].lstrip()}"


def _wrapped(start: str, value: Any, indent: int) -> list[str]:
    flow = _flow(value)
    if len(start) + len(flow) <= _WIDTH or not isinstance(value, (dict, list)):
        return [start + flow]
    inner = textwrap.wrap(flow[1:-1], _WIDTH - indent, break_long_words=False, break_on_hyphens=False)
    return [start + flow[0], *(" " * indent + line for line in inner), " " * (indent - 2) + flow[-1]]


def _nests(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_nests(item) for item in value.values())
    return isinstance(value, list) and any(isinstance(item, dict) for item in value)


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_flow(name)}: {_flow(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) and value.lower() not in _RESERVED
        return value if plain else json.dumps(value, ensure_ascii=False)
    return json.dumps(value)
