"""Propose rows for what the indexes list and the matrix lacks: releases, variants, host architectures, Pythons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec
from canonical import canonical

from envcheck.counting import counted
from envcheck.matrix.facts.model import Build, HostArch, Matrix, TorchRelease, TorchVariant, key, python_key
from envcheck.matrix.file.lint import Problem

_ARCHS: Final[dict[str, HostArch]] = {"x86_64": "x86_64", "aarch64": "aarch64"}
_CPU: Final = "cpu"


class SeenWheel(NamedTuple):
    """A wheel of torch that an index lists. `variant` is None on the Python index, whose file names do not have it."""

    torch: str
    variant: str | None
    arch: str
    python: str
    name: str
    sha256: str | None
    uploaded: str | None


class SeenIndexes(NamedTuple):
    """What the indexes list; of new releases also the Python index's variants (None: not known) and torchvision."""

    wheels: list[SeenWheel]
    pypi_variants: Mapping[tuple[str, str], str | None]
    torchvision: Mapping[str, str]


class RefreshSource(NamedTuple):
    """The source that proposed rows name: its key and text under `sources`, and the day of the reading."""

    key: str
    text: str
    day: str


class ProposedRow(NamedTuple):
    """One row that is new or longer, the Pythons it gains, and the wheels that show it."""

    where: str
    pythons: list[str]
    wheels: list[SeenWheel]


class Proposal(NamedTuple):
    """The matrix with the proposed rows, the rows, and what was seen and not proposed, with the reason."""

    matrix: Matrix
    rows: list[ProposedRow]
    left_out: list[str]


def variants_to_read(matrix: Matrix) -> list[str]:
    """Return the variants whose pages are read: cpu, and one for each CUDA from the oldest wheel's on."""
    listed = {variant.cuda for release in matrix.torch for variant in release.variants if variant.cuda}
    oldest = min(map(key, listed), default=())
    cudas = sorted((minor.cuda for minor in matrix.cuda.minors if key(minor.cuda) >= oldest), key=key)
    return [_CPU, *(_variant_name(cuda) for cuda in cudas)]


def _variant_name(cuda: str) -> str:
    return f"cu{cuda.replace('.', '')}"


def known_torchvisions(matrix: Matrix) -> set[str]:
    """Return the companions in the matrix."""
    return {release.torchvision for release in matrix.torch if release.torchvision}


def propose(matrix: Matrix, seen: SeenIndexes, source: RefreshSource) -> Proposal:
    """Return the matrix with unverified rows for all wheels that it lacks, in canonical form.

    Facts are added, never removed: an index may be a mirror that has not everything.
    """
    left_out: dict[str, None] = {}
    groups = _groups(matrix, seen, left_out)
    rows = []
    for (torch, name, arch), wheels in groups.items():
        release = matrix.release(torch) or _new_release(matrix, torch, seen, source)
        pythons = _lacking(release, name, arch, wheels)
        if not pythons:
            continue
        changed = _with_wheels(release, _row_variant(matrix, release, name, source), _ARCHS[arch], pythons, source)
        others = [row for row in matrix.torch if row.torch != torch]
        matrix = msgspec.structs.replace(matrix, torch=[*others, changed])
        proving = [wheel for wheel in wheels if wheel.python in pythons]
        rows.append(ProposedRow(f"torch {torch}+{name} {arch}", pythons, proving))
    if rows:
        matrix = msgspec.structs.replace(matrix, sources={**matrix.sources, source.key: source.text})
    return Proposal(canonical(matrix), rows, [*left_out])


def _groups(
    matrix: Matrix, seen: SeenIndexes, left_out: dict[str, None]
) -> dict[tuple[str, str, str], list[SeenWheel]]:
    """Return the wheels by release, variant and host architecture, in order; note what cannot be placed."""
    oldest = min((key(release.torch) for release in matrix.torch), default=())
    variants = {_CPU, *(_variant_name(minor.cuda) for minor in matrix.cuda.minors)}
    groups: dict[tuple[str, str, str], list[SeenWheel]] = {}
    for wheel in sorted(seen.wheels, key=lambda w: (key(w.torch), w.variant or "", w.arch, python_key(w.python))):
        if key(wheel.torch) < oldest:
            continue
        name = wheel.variant or _pypi_variant(matrix, seen, wheel)
        where = f"torch {wheel.torch} for {wheel.arch} on the Python index"
        if name is None:
            left_out[f"{where}: its requirements do not say which CUDA it is built with"] = None
        elif name not in variants:
            left_out[f"{where}: {name} is of a CUDA that is not among cuda.minors; add that with its driver"] = None
        else:
            groups.setdefault((wheel.torch, name, wheel.arch), []).append(wheel)
    return dict(sorted(groups.items(), key=lambda item: (key(item[0][0]), item[0][1], item[0][2])))


def _pypi_variant(matrix: Matrix, seen: SeenIndexes, wheel: SeenWheel) -> str | None:
    release = matrix.release(wheel.torch)
    if release is None:
        return seen.pypi_variants.get((wheel.torch, wheel.arch))
    return release.pypi.get(_ARCHS[wheel.arch])


def _lacking(release: TorchRelease, name: str, arch: str, wheels: Iterable[SeenWheel]) -> list[str]:
    variant = release.variant(name)
    builds = variant.builds if variant else []
    present = {python for build in builds if build.arch == arch for python in build.python}
    return sorted({wheel.python for wheel in wheels} - present, key=python_key)


def _new_release(matrix: Matrix, torch: str, seen: SeenIndexes, source: RefreshSource) -> TorchRelease:
    days = [wheel.uploaded[:10] for wheel in seen.wheels if wheel.torch == torch and wheel.uploaded]
    names = {_variant_name(minor.cuda) for minor in matrix.cuda.minors} | {_CPU}
    pypi = {arch: name for arch in _ARCHS.values() if (name := seen.pypi_variants.get((torch, arch))) in names and name}
    return TorchRelease(
        torch=torch,
        released=min(days, default=source.day),
        complete=False,
        pypi=pypi,
        pypi_unverified=list(pypi),
        torchvision=seen.torchvision.get(torch),
        variants=[],
        verified=False,
        note=None if days else "released: the day it was first seen, no page has a date",
        source=[source.key],
    )


def _row_variant(matrix: Matrix, release: TorchRelease, name: str, source: RefreshSource) -> TorchVariant:
    """Return the release's row of the variant, or a new one without wheels."""
    row = release.variant(name)
    if row is not None:
        return row
    cuda = next((minor.cuda for minor in matrix.cuda.minors if _variant_name(minor.cuda) == name), None)
    return TorchVariant(variant=name, cuda=cuda, index=f"whl/{name}", builds=[], verified=False, source=[source.key])


def _with_wheels(
    release: TorchRelease, variant: TorchVariant, arch: HostArch, pythons: list[str], source: RefreshSource
) -> TorchRelease:
    build = next((build for build in variant.builds if build.arch == arch), None)
    changed = _new_build(variant, arch, pythons, source) if build is None else _longer(build, pythons, source)
    variant = msgspec.structs.replace(
        variant,
        unseen=[name for name in variant.unseen if name != arch],
        builds=[*(other for other in variant.builds if other.arch != arch), changed],
    )
    others = [row for row in release.variants if row.variant != variant.variant]
    return msgspec.structs.replace(release, variants=[*others, variant])


def _new_build(variant: TorchVariant, arch: HostArch, pythons: list[str], source: RefreshSource) -> Build:
    cpu = variant.variant == _CPU
    return Build(
        arch=arch,
        python=pythons,
        sass=[] if cpu else None,
        sass_verified=cpu,
        verified=False,
        source=[source.key],
    )


def _longer(build: Build, pythons: list[str], source: RefreshSource) -> Build:
    """Return the row with more Pythons. The whole row is unverified until somebody confirms them."""
    names = " and ".join(pythons)
    note = f"Python {names}: proposed by {source.key}, the others were there before"
    return msgspec.structs.replace(
        build,
        python=[*build.python, *pythons],
        verified=False,
        note="; ".join(filter(None, [build.note, note])),
        source=sorted({*build.source, source.key}),
    )


def markdown(proposal: Proposal, source: RefreshSource, problems: Iterable[Problem]) -> str:
    """Return the page. `problems` are what the lint finds in the proposed matrix: a person's work."""
    lines = [f"{counted(len(proposal.rows), 'row')} proposed from {source.text}.", ""]
    if proposal.rows:
        lines += [
            "Every row says `verified: false`: an index lists the wheel, nobody has looked at what is in it.",
            "Confirm a row with a second source and take the flag away, or take the row out.",
            "",
            "| Row | Pythons | Wheels |",
            "|---|---|---|",
            *(_row(row) for row in proposal.rows),
            "",
        ]
    lines += _section("To do by hand", [f"{where}: {problem}" for where, problem in problems])
    lines += _section("Seen, not proposed", proposal.left_out)
    if proposal.rows:
        lines += ["<details><summary>Wheels and their sha256</summary>", "", "```"]
        lines += [f"{wheel.sha256 or 'no hash on the page':64}  {wheel.name}" for wheel in _wheels(proposal)]
        lines += ["```", "", "</details>", ""]
    return "\n".join(lines)


def _row(row: ProposedRow) -> str:
    return f"| {row.where} | {', '.join(row.pythons)} | {len(row.wheels)} |"


def _section(title: str, items: list[str]) -> list[str]:
    return [f"## {title}", "", *(f"- {item}" for item in items), ""] if items else []


def _wheels(proposal: Proposal) -> list[SeenWheel]:
    return list(dict.fromkeys(wheel for row in proposal.rows for wheel in row.wheels))
