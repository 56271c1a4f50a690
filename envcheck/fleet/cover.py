"""Which published cells a fleet needs: the fewest that cover all nodes, and what covers none.

Nodes are read from reports, or from a CSV file.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

from envcheck import safe_files
from envcheck.errors import ConfigError
from envcheck.fleet.files import read_files
from envcheck.fleet.hostlist import natural, unfold
from envcheck.matrix.facts.lookup import Facts, find_gpu, suggest
from envcheck.matrix.facts.model import Cell, Matrix, key
from envcheck.matrix.resolver.candidates import candidates
from envcheck.matrix.resolver.query import DRIVER_VERSION, Query, host_arch, requested_devices, validate
from envcheck.matrix.resolver.resolve import resolve
from envcheck.matrix.resolver.verdict import FORWARD, MINOR, OK
from envcheck.runner.schema import Row

_COLUMNS: Final = ("node", "gpu", "driver", "arch")
_NEEDED: Final = ("node", "gpu", "driver")
_FIX: Final = "write a header node,gpu,driver[,arch] and a line for each node or host list"
_ARCHS: Final = {"": "x86_64", "amd64": "x86_64", "arm64": "aarch64", "x86_64": "x86_64", "aarch64": "aarch64"}


class NodeKind(NamedTuple):
    """What decides which cells run on a node."""

    gpus: tuple[str, ...]
    driver: str
    arch: str


class Inventory(NamedTuple):
    """The nodes of each kind; `notes` say which nodes are left out, and why.

    `first` says where each kind is named first: FILE:LINE, or the report of a node.
    """

    names: dict[NodeKind, list[str]]
    notes: list[str]
    first: dict[NodeKind, str]


def of_places(places: Iterable[Path]) -> Inventory:
    """Return the inventory in CSV files, and in the reports in other files and below directories.

    A node that has a report is what the report says. Raise ConfigError for a line of CSV that cannot be understood, for
    a node in two lines, and where there is no node at all.
    """
    everything = [*places]
    tables = [place for place in everything if place.suffix.lower() == ".csv" and not place.is_dir()]
    report_places = [place for place in everything if place not in tables]
    rows = [*_of_reports(report_places)] if report_places else []
    notes = [note for _, kind, note in rows if kind is None]
    kind_of = {node: (kind, f"the report of {node}") for node, kind, _ in rows if kind is not None}
    listed: dict[str, tuple[NodeKind, str]] = {}
    for where, kind, node in itertools.chain.from_iterable(map(_of_csv, tables)):
        if node in listed:
            message = f"{where}: {node} is in {listed[node][1]} too"
            raise ConfigError(message, fix="name each node once")
        listed[node] = kind, where
    names, first = defaultdict[NodeKind, list[str]](list), dict[NodeKind, str]()
    for node, (kind, where) in (listed | kind_of).items():
        names[kind].append(node)
        first.setdefault(kind, where)
    if not names:
        why = f": {notes[0]}" if notes else ""
        message = f"no node with a GPU and a driver in {', '.join(map(str, everything))}{why}"
        raise ConfigError(message, fix="name reports of `envcheck run`, or a CSV file: node,gpu,driver[,arch]")
    return Inventory({kind: sorted(nodes, key=natural) for kind, nodes in names.items()}, notes, first)


def _of_reports(places: list[Path]) -> Iterator[tuple[str, NodeKind | None, str]]:
    """Yield each node with its kind by its newest report, or the note that says why it has none."""
    newest = {}
    for file in sorted(read_files(places), key=lambda file: file.at):
        if file.report is None:
            yield file.node, None, f"{file.path} {file.note}"
        else:
            newest[file.node] = file.report
    for node, report in newest.items():
        if report.gpu and report.driver:
            arch = _ARCHS.get(report.arch, report.arch)
            yield node, NodeKind(tuple(report.gpu.split(" + ")), report.driver, arch), ""
        else:
            yield node, None, f"{node} is left out: its report has {'no driver' if report.gpu else 'no GPU'}"


def _of_csv(path: Path) -> Iterator[tuple[str, NodeKind, str]]:
    """Yield each line of a table, with the node that it names; a line of a host list for each of its nodes."""
    try:
        content = safe_files.read_whole(path).decode()
        rows = csv.DictReader(io.StringIO(content), skipinitialspace=True, strict=True)
        header = [name.strip() for name in rows.fieldnames or ()]
        rows.fieldnames = header
        if not set(_NEEDED) <= set(header) <= set(_COLUMNS) or len(header) > len(set(header)):
            columns = f"{path}:1: the columns are {', '.join(header)[:60]!r}"
            raise ConfigError(columns if any(header) else f"{path} has no header line", fix=_FIX)
        for row in rows:
            where = f"{path}:{rows.line_num}"
            kind, listed = _csv_row(where, row)
            yield from ((where, kind, node) for node in _nodes(listed, where))
    except UnicodeDecodeError as error:
        message = f"{path} is not a text file"
        raise ConfigError(message, fix=_FIX) from error
    except csv.Error as error:
        message = f"{path} is not CSV: {error}"
        raise ConfigError(message, fix=_FIX) from error


def _csv_row(where: str, row: dict[str | None, str | None]) -> tuple[NodeKind, str]:
    values = {name: (row.get(name) or "").strip() for name in _COLUMNS}
    if None in row or not all(values[name] for name in _NEEDED):
        message = f"{where}: a line needs a node, a GPU and a driver, and no more than the header names"
        raise ConfigError(message, fix=_FIX)
    arch = _ARCHS.get(values["arch"].lower())
    if arch is None:
        message = f"{where}: {values['arch'][:20]!r} is not a host architecture"
        raise ConfigError(message, fix="write x86_64 or aarch64")
    if not DRIVER_VERSION.fullmatch(values["driver"]):
        message = f"{where}: {values['driver'][:20]!r} is not a driver version"
        raise ConfigError(message, fix="write it as nvidia-smi prints it, 570.124.06")
    return NodeKind(tuple(gpu.strip() for gpu in values["gpu"].split("+")), values["driver"], arch), values["node"]


def _nodes(listed: str, where: str) -> list[str]:
    try:
        return unfold(listed)
    except ConfigError as error:
        message = f"{where}: {error.message}"
        raise ConfigError(message, fix=error.fix) from error


SCHEMA: Final = "envcheck/fleet-plan/1"
MOST_KINDS: Final = 40
# A cell that runs as it is is better than one that needs minor-version compatibility, or a package on each node.
_QUALITY: Final = {OK: 2, MINOR: 1, FORWARD: 0}


class KindOfNodes(Row, frozen=True, kw_only=True):
    """Nodes that are alike in GPU, driver and host architecture."""

    gpus: list[str]
    driver: str
    arch: str
    names: list[str]


class PlannedCell(Row, frozen=True, kw_only=True):
    """A cell to use, on how many nodes, and the verdict on each of their kinds (by place in `kinds`)."""

    cell: str
    nodes: int
    verdicts: dict[str, str]


class UncoveredKind(Row, frozen=True, kw_only=True):
    """Nodes that no published cell covers; `verdict` is a word of `envcheck resolve`, or `not-published`.

    `not-published`: the wish can run there, by the cell `buildable`, but no cell of it is published.
    """

    kind: int
    verdict: str
    reason: str
    buildable: str | None


class FleetPlan(Row, frozen=True, kw_only=True):
    """The plan. `cells` are the fewest published cells that cover every node that any of them covers.

    `oldest_torch` is that of the chosen cells.
    """

    schema: Literal["envcheck/fleet-plan/1"] = SCHEMA
    wanted: dict[str, str]
    nodes: int
    kinds: list[KindOfNodes]
    cells: list[PlannedCell]
    uncovered: list[UncoveredKind]
    oldest_torch: str | None
    notes: list[str]


# The published cells that cover any kind, with the verdict on each kind by its place.
_Verdicts = dict[Cell, dict[int, str]]


def plan(matrix: Matrix, inventory: Inventory, wish: Query) -> FleetPlan:
    """Return the plan for a wish (torch, variant, cuda, python). Raise ConfigError for more than 40 kinds of nodes."""
    kinds = sorted(inventory.names, key=lambda kind: (-len(inventory.names[kind]), kind))
    if len(kinds) > MOST_KINDS:
        message = f"{len(kinds)} kinds of nodes (GPU, driver, architecture) are more than the {MOST_KINDS} of one plan"
        raise ConfigError(message, fix="plan for a part of the fleet at a time")
    _refuse_unknown_gpus(matrix, inventory)
    queries = [wish.replace(driver=kind.driver, gpus=[*kind.gpus], arch=kind.arch) for kind in kinds]
    verdicts = _verdicts(matrix, queries)
    cells = _chosen(verdicts)
    covered = {place for places in verdicts.values() for place in places}
    return FleetPlan(
        wanted={name: value for name in ("torch", "variant", "cuda", "python") if (value := getattr(wish, name))},
        nodes=sum(map(len, inventory.names.values())),
        kinds=[KindOfNodes(gpus=[*k.gpus], driver=k.driver, arch=k.arch, names=inventory.names[k]) for k in kinds],
        cells=_planned(cells, verdicts, [len(inventory.names[kind]) for kind in kinds]),
        uncovered=[_uncovered(matrix, place, query) for place, query in enumerate(queries) if place not in covered],
        oldest_torch=min((cell.torch for cell in cells), key=key, default=None),
        notes=inventory.notes,
    )


def _refuse_unknown_gpus(matrix: Matrix, inventory: Inventory) -> None:
    for kind, where in inventory.first.items():
        for name in kind.gpus:
            if find_gpu(matrix, name) is None:
                near = " or ".join(suggest(matrix, name))
                hint = f"did you mean {near}?" if near else "`envcheck matrix show --list-gpus` lists them"
                message = f"{where}: no GPU named {name[:60]!r} in the matrix"
                raise ConfigError(message, fix=hint)


def _verdicts(matrix: Matrix, queries: Sequence[Query]) -> _Verdicts:
    """Return the published cells that run on each kind, the resolver's best first."""
    facts, published = Facts(matrix), {cell: matrix.archs(cell) for cell in matrix.cells()}
    verdicts: _Verdicts = {}
    for place, query in enumerate(queries):
        validate(facts, query)
        devices = requested_devices(facts, query)
        for row in candidates(facts, query, devices, host_arch(query, devices)):
            for cell in row.cells() if row.legal else ():
                if query.arch in published.get(cell, ()):
                    verdicts.setdefault(cell, {})[place] = row.verdict.name
    return verdicts


def _chosen(verdicts: _Verdicts) -> list[Cell]:
    """Return the fewest cells that cover every kind that any covers, the newest torch first."""
    # Of cells that cover the same kinds equally well the first is kept: the resolver ranks the better Python first.
    sets: dict[CoverSet, Cell] = {}
    for cell, covered in verdicts.items():
        sets.setdefault(CoverSet(sum(1 << place for place in covered), _score(cell, covered)), cell)
    cells = [*sets.values()]
    return sorted((cells[place] for place in smallest_cover([*sets])), key=lambda cell: key(cell.torch), reverse=True)


def _score(cell: Cell, covered: Mapping[int, str]) -> tuple[int, ...]:
    """Return how good a cell is: the newest torch, then how well it runs where it runs worst."""
    version = (*key(cell.torch), 0, 0, 0)[:3]
    return (*version, min(_QUALITY[verdict] for verdict in covered.values()))


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


def _uncovered(matrix: Matrix, place: int, query: Query) -> UncoveredKind:
    resolution = resolve(matrix, query)
    if resolution.legal:
        why = f"{resolution.cell} runs there ({resolution.verdict}), and no cell that does is published"
        return UncoveredKind(kind=place, verdict="not-published", reason=why, buildable=resolution.buildable)
    reason = "; ".join(resolution.reasons)
    return UncoveredKind(kind=place, verdict=resolution.verdict, reason=reason, buildable=None)


# Larger is better, field by field; of several sets the sorted list is compared, the worst first.
Score = tuple[int, ...]


class CoverSet(NamedTuple):
    """A set: the elements it covers as bits, and how good it is."""

    mask: int
    score: Score


def smallest_cover(sets: Sequence[CoverSet]) -> list[int]:
    """Return the places of the fewest sets that cover what all of them together do.

    Of covers of one size the one whose worst score is best is returned, then whose second worst is; then the first.
    """
    union = 0
    for one in sets:
        union |= one.mask
    best: list[int] | None = None
    for size in itertools.count():
        covers = map(sorted, _covers(union, sets, size))
        best = max(covers, key=lambda cover: (value(cover, sets), [-place for place in cover]), default=None)
        if best is not None:
            break
    return best or []


def value(places: Iterable[int], sets: Sequence[CoverSet]) -> list[Score]:
    """Return what covers of one size are compared by: the larger is better."""
    return sorted(sets[place].score for place in places)


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
