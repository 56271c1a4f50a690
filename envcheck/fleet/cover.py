"""Which published cells a fleet needs: the fewest that cover all nodes, and what covers none."""

import csv
import io
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

from envcheck import safe_files
from envcheck.errors import ConfigError, refuse
from envcheck.fleet.files import read_files
from envcheck.fleet.hostlist import natural, unfold
from envcheck.matrix.facts.lookup import Facts, find_gpu, hint_of
from envcheck.matrix.facts.model import Cell, Matrix, key
from envcheck.matrix.resolver.candidates import candidates
from envcheck.matrix.resolver.query import DRIVER_VERSION, Query, host_arch, requested_devices, validate, whole_driver
from envcheck.matrix.resolver.resolve import resolve
from envcheck.matrix.resolver.verdict import FORWARD, MINOR, OK
from envcheck.runner.schema import Row

_NEEDED: Final = ("node", "gpu", "driver")
_FIX: Final = "write a header node,gpu,driver[,arch] and a line for each node or host list"
_ARCHS: Final = {"": "x86_64", "amd64": "x86_64", "arm64": "aarch64", "x86_64": "x86_64", "aarch64": "aarch64"}


class KindOfNodes(Row, frozen=True, kw_only=True):
    """Nodes that are alike in GPU, driver and host architecture."""

    gpus: list[str]
    driver: str
    arch: str
    names: list[str]


# What decides which cells run on a node: its GPUs, driver and architecture.
_Kind = tuple[tuple[str, ...], str, str]
# The kinds of nodes, the largest first, and which are left out and why.
Inventory = tuple[list[KindOfNodes], list[str]]


def of_places(places: Iterable[Path]) -> Inventory:
    """Return the inventory in CSV files and in reports elsewhere; a node with a report is what the report says."""
    everything = [*places]
    tables = [place for place in everything if place.suffix.lower() == ".csv" and not place.is_dir()]
    kind_of: dict[str, tuple[_Kind, str]] = {}
    for where, kind, node in itertools.chain.from_iterable(map(_of_csv, tables)):
        if node in kind_of:
            refuse(f"{where}: {node} is in {kind_of[node][1]} too", "name each node once")
        kind_of[node] = kind, where
    notes = []
    read = read_files(place for place in everything if place not in tables)
    files = [file for file in read if file.node or file.report is None]  # of a node, and not of a group
    for file in {file.node or file.path: file for file in sorted(files, key=lambda file: file.at)}.values():
        report = file.report
        if report and report.gpu and report.driver:
            kind = tuple(report.gpu.split(" + ")), report.driver, _ARCHS.get(report.arch, report.arch)
            kind_of[file.node] = kind, f"the report of {file.node}"
        else:
            lacking = "has no driver" if report and report.gpu else "has no GPU"
            notes.append(f"{file.path} {file.note or lacking}")
    if not kind_of:
        why = f": {notes[0].partition('; ')[0]}" if notes else ""
        refuse(f"no node with a GPU and a driver in {', '.join(map(str, everything))}{why}", f"{_FIX} in a .csv")
    names = defaultdict[_Kind, list[str]](list)
    for node in sorted(kind_of, key=natural):
        names[kind_of[node][0]].append(node)
    kinds = sorted(names.items(), key=lambda item: (-len(item[1]), item[0]))
    return [KindOfNodes(gpus=[*gpus], driver=d, arch=arch, names=nodes) for (gpus, d, arch), nodes in kinds], notes


def _of_csv(path: Path) -> Iterator[tuple[str, _Kind, str]]:
    """Yield each line of a table, with the node that it names; a line of a host list for each of its nodes."""
    try:
        content = safe_files.read_whole(path).decode()
        rows = csv.DictReader(io.StringIO(content), skipinitialspace=True, strict=True)
        header = rows.fieldnames = [name.strip() for name in rows.fieldnames or ()]
        if not set(_NEEDED) <= set(header) <= {*_NEEDED, "arch"} or len(header) > len(set(header)):
            refuse(f"{path}:1: the columns are {', '.join(header)[:60]!r}", _FIX)
        for row in rows:
            where = f"{path}:{rows.line_num}"
            try:
                kind, nodes = _csv_row(row)
            except ConfigError as error:
                refuse(f"{where}: {error.message}", error.fix or _FIX)
            yield from ((where, kind, node) for node in nodes)
    except (UnicodeDecodeError, csv.Error) as error:
        refuse(f"{path} is not CSV: {error}", _FIX)


def _csv_row(row: dict[str | None, str | None]) -> tuple[_Kind, list[str]]:
    values = {name: (row.get(name) or "").strip() for name in (*_NEEDED, "arch")}
    if None in row or not all(values[name] for name in _NEEDED):
        refuse("a line needs a node, a GPU and a driver, and no more than the header names", _FIX)
    arch = _ARCHS.get(values["arch"].lower())
    if arch is None:
        refuse(f"{values['arch'][:20]!r} is not a host architecture", "write x86_64 or aarch64")
    if not DRIVER_VERSION.fullmatch(values["driver"] + ".0" * values["driver"].isdecimal()):  # a branch, 535, too
        refuse(f"{values['driver'][:20]!r} is not a driver version", "write it as nvidia-smi prints it, 570.124.06")
    gpus = tuple(gpu.strip() for gpu in values["gpu"].split("+"))
    return (gpus, values["driver"], arch), unfold(values["node"])


# Kinds that no choice can tell apart count once: there are seldom more than a dozen.
MOST_KINDS: Final = 40
# A cell that runs as it is is better than one that needs minor-version compatibility, or a package on each node.
_QUALITY: Final = {OK: 2, MINOR: 1, FORWARD: 0}


class PlannedCell(Row, frozen=True, kw_only=True):
    """A cell to use, on how many nodes, and the verdict on each of their kinds (by place in `kinds`)."""

    cell: str
    nodes: int
    verdicts: dict[str, str]


class UncoveredKind(Row, frozen=True, kw_only=True):
    """Nodes that no published cell covers; `verdict` is `not-published` where the cell `buildable` would.

    It is `unknown-gpu` where the matrix has no such GPU.
    """

    kind: int
    verdict: str
    reason: str
    buildable: str | None


class FleetPlan(Row, frozen=True, kw_only=True):
    """The plan. `cells` are the fewest published cells that cover every node that any of them covers."""

    schema: Literal["envcheck/fleet-plan/1"] = "envcheck/fleet-plan/1"
    wanted: dict[str, str]
    nodes: int
    kinds: list[KindOfNodes]
    cells: list[PlannedCell]
    uncovered: list[UncoveredKind]
    notes: list[str]


# The published cells that cover any kind, with the verdict on each kind by its place.
_Verdicts = dict[Cell, dict[int, str]]


def plan(matrix: Matrix, inventory: Inventory, wish: Query) -> FleetPlan:
    """Return the plan for a wish (torch, variant, cuda, python). Raise ConfigError for too many kinds of nodes."""
    kinds, notes = inventory
    asked = (wish.replace(driver=kind.driver, gpus=kind.gpus, arch=kind.arch) for kind in kinds)
    queries, taken = zip(*(whole_driver(Facts(matrix), query) for query in asked), strict=True)
    unknown = {place: gpu for place, kind in enumerate(kinds) for gpu in kind.gpus if find_gpu(matrix, gpu) is None}
    verdicts = _verdicts(matrix, {place: query for place, query in enumerate(queries) if place not in unknown})
    cells = _chosen(verdicts)
    covered = {place for places in verdicts.values() for place in places}
    return FleetPlan(
        wanted={name: value for name in ("torch", "variant", "cuda", "python") if (value := getattr(wish, name))},
        nodes=sum(len(kind.names) for kind in kinds),
        kinds=kinds,
        cells=_planned(cells, verdicts, [len(kind.names) for kind in kinds]),
        uncovered=[
            _uncovered(matrix, place, query, unknown.get(place))
            for place, query in enumerate(queries)
            if place not in covered
        ],
        notes=[*notes, *dict.fromkeys(itertools.chain(*taken))],
    )


def _verdicts(matrix: Matrix, queries: Mapping[int, Query]) -> _Verdicts:
    """Return the published cells that run on each kind, the resolver's best first."""
    facts, published = Facts(matrix), {cell: matrix.archs(cell) for cell in matrix.cells()}
    verdicts: _Verdicts = {}
    for place, query in queries.items():
        validate(facts, query)
        devices = requested_devices(facts, query)
        for row in candidates(facts, query, devices, host_arch(query, devices)):
            for cell in row.cells() if row.legal else ():
                if query.arch in published.get(cell, ()):
                    verdicts.setdefault(cell, {})[place] = row.verdict.name
    return verdicts


def _chosen(verdicts: _Verdicts) -> list[Cell]:
    """Return the fewest cells that cover every kind that any covers, the newest torch first."""
    alike: dict[frozenset[Cell], list[int]] = defaultdict(list)
    for place in sorted({place for covered in verdicts.values() for place in covered}):
        alike[frozenset(cell for cell, covered in verdicts.items() if place in covered)].append(place)
    if len(alike) > MOST_KINDS:
        few = f"are more than the {MOST_KINDS} of one plan"
        refuse(f"{len(alike)} kinds of nodes (GPU, driver, architecture) {few}", "plan for a part of the fleet")
    bits = {places[0]: 1 << bit for bit, places in enumerate(alike.values())}
    # Of cells that cover the same kinds equally well the first is kept: the resolver ranks the better Python first.
    sets: dict[CoverSet, Cell] = {}
    for cell, covered in verdicts.items():
        # How good a cell is: the newest torch, then how well it runs where it runs worst.
        score = (*(*key(cell.torch), 0, 0, 0)[:3], min(_QUALITY[verdict] for verdict in covered.values()))
        sets.setdefault(CoverSet(sum(bits.get(place, 0) for place in covered), score), cell)
    cells = [*sets.values()]
    return sorted((cells[place] for place in smallest_cover([*sets])), key=lambda cell: key(cell.torch), reverse=True)


def _planned(cells: Sequence[Cell], verdicts: _Verdicts, counts: Sequence[int]) -> list[PlannedCell]:
    """Return the cells with their nodes; a node that several cover gets the newest torch that runs best there."""
    homes: dict[Cell, dict[int, str]] = {cell: {} for cell in cells}
    for place in range(len(counts)):
        fitting = [cell for cell in cells if place in verdicts[cell]]
        if fitting:
            best = max(fitting, key=lambda cell: (key(cell.torch), _QUALITY[verdicts[cell][place]]))
            homes[best][place] = verdicts[best][place]
    return [
        PlannedCell(
            cell=str(cell),
            nodes=sum(counts[place] for place in home),
            verdicts={str(place): verdict for place, verdict in home.items()},
        )
        for cell, home in homes.items()
    ]


def _uncovered(matrix: Matrix, place: int, query: Query, unknown: str | None) -> UncoveredKind:
    if unknown is not None:
        why = f"no GPU named {unknown[:60]!r} in the matrix; {hint_of(matrix, unknown)}"
        return UncoveredKind(kind=place, verdict="unknown-gpu", reason=why, buildable=None)
    resolution = resolve(matrix, query)
    if resolution.legal:
        why = f"{resolution.cell} runs there ({resolution.verdict}), and no cell that does is published"
        return UncoveredKind(kind=place, verdict="not-published", reason=why, buildable=resolution.buildable)
    reason = "; ".join(resolution.reasons)
    return UncoveredKind(kind=place, verdict=resolution.verdict, reason=reason, buildable=None)


class CoverSet(NamedTuple):
    """A set: the elements it covers as bits, and how good it is, the larger the better, field by field."""

    mask: int
    score: tuple[int, ...]


def smallest_cover(sets: Sequence[CoverSet]) -> list[int]:
    """Return the places of the fewest sets that cover all; of such covers that whose worst score is best."""
    union = 0
    for one in sets:
        union |= one.mask
    by_size = (map(sorted, _covers(union, sets, size)) for size in itertools.count())
    best = (max(covers, key=lambda cover: value(cover, sets), default=None) for covers in by_size)
    return next(cover for cover in best if cover is not None)


def value(cover: Sequence[int], sets: Sequence[CoverSet]) -> tuple[list[tuple[int, ...]], list[int]]:
    """Return what covers of one size are compared by: the larger is better, and of those as good the first."""
    return sorted(sets[place].score for place in cover), [-place for place in cover]


def _covers(missing: int, sets: Sequence[CoverSet], size: int) -> Iterator[list[int]]:
    """Yield every cover of at most `size` sets of which each covers something that those before it do not."""
    if not missing:
        yield []
        return
    if size == 0 or max((one.mask & missing).bit_count() for one in sets) * size < missing.bit_count():
        return
    covering = (
        [place for place, one in enumerate(sets) if one.mask >> bit & 1]
        for bit in range(missing.bit_length())
        if missing >> bit & 1
    )
    for place in min(covering, key=len):
        for cover in _covers(missing & ~sets[place].mask, sets, size - 1):
            yield [place, *cover]
