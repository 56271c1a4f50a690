"""Which published cells a fleet needs: the fewest that cover all nodes, what covers none, what a driver would add.

Nodes are read from reports, or from a CSV file.
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from envcheck import safe_files
from envcheck.counting import counted
from envcheck.errors import ConfigError
from envcheck.fleet.database import ingest, opened
from envcheck.fleet.hostlist import fold, is_name, natural, unfold
from envcheck.matrix.facts.lookup import Facts, find_gpu, suggest
from envcheck.matrix.facts.model import Cell, Matrix, branch, key
from envcheck.matrix.resolver.candidates import candidates
from envcheck.matrix.resolver.query import DRIVER_VERSION, Query, host_arch, requested_devices, validate
from envcheck.matrix.resolver.resolve import resolve
from envcheck.matrix.resolver.verdict import FORWARD, MINOR, OK
from envcheck.runner.schema import Row

_COLUMNS: Final = ("node", "gpu", "driver", "arch", "count")
_NEEDED: Final = ("node", "gpu", "driver")
_MOST: Final = 1 << 20
_FIX: Final = "write a header node,gpu,driver[,arch][,count] and a line for each node or host list"
_ARCHS: Final = {"": "x86_64", "amd64": "x86_64", "arm64": "aarch64", "x86_64": "x86_64", "aarch64": "aarch64"}


class NodeKind(NamedTuple):
    """What decides which cells run on a node."""

    gpus: tuple[str, ...]
    driver: str
    arch: str


class Inventory(NamedTuple):
    """How many nodes there are of each kind, and their names; `notes` say which nodes are left out, and why.

    `first` says where each kind is named first: FILE:LINE, or the report of a node.
    """

    counts: dict[NodeKind, int]
    names: dict[NodeKind, list[str]]
    notes: list[str]
    first: dict[NodeKind, str]


def of_places(places: Iterable[Path]) -> Inventory:
    """Return the inventory in CSV files, and in the reports in other files and below directories.

    Raise ConfigError for a line of CSV that cannot be understood, and where there is no node at all.
    """
    everything = [*places]
    tables = [place for place in everything if place.suffix.lower() == ".csv" and not place.is_dir()]
    counts, names, notes = defaultdict[NodeKind, int](int), defaultdict[NodeKind, list[str]](list), list[str]()
    lines, first, twice = dict[str, str](), dict[NodeKind, str](), list[str]()
    report_places = [place for place in everything if place not in tables]
    rows = [*_of_reports(report_places)] if report_places else []
    reported = {node: kind for node, kind, _ in rows if kind is not None}
    notes += [note for _, kind, note in rows if kind is None]
    for table in tables:
        for where, kind, nodes, count in _of_csv(table):
            named = nodes if len(nodes) == count else []
            for node in named:
                _refuse_second(node, lines, where)
            again = [node for node in named if node in reported]
            twice += again
            if count > len(again):
                counts[kind] += count - len(again)
                names[kind] += [node for node in nodes if not named or node not in reported]
                first.setdefault(kind, where)
    for node, kind in reported.items():
        counts[kind] += 1
        names[kind].append(node)
        first.setdefault(kind, f"the report of {node}")
    if twice:
        notes.append(f"{fold(twice)}: the report counts, and not the line of CSV")
    if not counts:
        why = f": {notes[0]}" if notes else ""
        message = f"no node with a GPU and a driver in {', '.join(map(str, everything))}{why}"
        raise ConfigError(message, fix="name reports of `envcheck run`, or a CSV file: node,gpu,driver[,arch][,count]")
    sorted_names = {kind: sorted(set(nodes), key=natural) for kind, nodes in names.items()}
    return Inventory(dict(counts), sorted_names, notes, first)


def _refuse_second(node: str, lines: dict[str, str], where: str) -> None:
    """Remember the line that names a node. Raise ConfigError for a node that a line before names too."""
    before = lines.setdefault(node, where)
    if before != where:
        message = f"{where}: {node} is in {before} too"
        raise ConfigError(message, fix="name each node once")


def _of_reports(places: list[Path]) -> Iterable[tuple[str, NodeKind | None, str]]:
    """Yield each node with its kind by its newest report, or the note that says why it has none."""
    with opened(None) as database:
        files = ingest(database, places).files
        query = "SELECT node, gpu, driver, arch FROM runs WHERE id IN (SELECT run FROM files) ORDER BY started, id"
        newest = {row[0]: row[1:] for row in database.rows(query)}
    yield from ((file.node, None, f"{file.path} {file.note}") for file in files if file.problem)
    for node, (gpu, driver, arch) in newest.items():
        if gpu and driver:
            yield node, NodeKind(tuple(gpu.split(" + ")), driver, _ARCHS.get(arch, arch)), ""
        else:
            yield node, None, f"{node} is left out: its report has {'no driver' if gpu else 'no GPU'}"


def _of_csv(path: Path) -> Iterable[tuple[str, NodeKind, list[str], int]]:
    try:
        content = safe_files.read_whole(path).decode()
        rows = csv.DictReader(io.StringIO(content), skipinitialspace=True, strict=True)
        header = [name.strip() for name in rows.fieldnames or ()]
        rows.fieldnames = header
        if not set(_NEEDED) <= set(header) <= set(_COLUMNS) or len(header) > len(set(header)):
            columns = f"{path}:1: the columns are {', '.join(header)[:60]!r}"
            message = columns if any(header) else f"{path} has no header line"
            raise ConfigError(message, fix=_FIX)
        for row in rows:
            where = f"{path}:{rows.line_num}"
            yield (where, *_csv_row(where, row))
    except UnicodeDecodeError as error:
        message = f"{path} is not a text file"
        raise ConfigError(message, fix=_FIX) from error
    except csv.Error as error:
        message = f"{path} is not CSV: {error}"
        raise ConfigError(message, fix=_FIX) from error


def _csv_row(where: str, row: dict[str | None, str | None]) -> tuple[NodeKind, list[str], int]:
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
    number = values["count"]
    if number and not (number.isascii() and number.isdigit() and 0 < int(number[:8]) <= _MOST):
        message = f"{where}: {number[:20]!r} is not a number of nodes"
        raise ConfigError(message, fix="write how many nodes the line is about, 1 or more")
    nodes = _nodes(values["node"], number, where)
    kind = NodeKind(tuple(gpu.strip() for gpu in values["gpu"].split("+")), values["driver"], arch)
    return kind, nodes, int(number) if number else len(nodes)


def _nodes(listed: str, number: str, where: str) -> list[str]:
    """Return the nodes of a line; with a number of nodes the first column may be any label of a partition."""
    if number and is_name(listed):
        return [listed]
    try:
        nodes = unfold(listed)
    except ConfigError as error:
        message = f"{where}: {error.message}"
        raise ConfigError(message, fix=error.fix) from error
    if number and int(number) != len(nodes):
        message = f"{where}: {listed[:40]!r} names {counted(len(nodes), 'node')}, and the count is {number[:20]}"
        raise ConfigError(message, fix="leave out the count, or write a label for the nodes")
    return nodes


SCHEMA: Final = "envcheck/fleet-plan/1"
MOST_KINDS: Final = 40
# A cell that runs as it is is better than one that needs minor-version compatibility, or a package on each node.
_QUALITY: Final = {OK: 2, MINOR: 1, FORWARD: 0}
# The last driver of a branch, as the resolver knows none by number.
_LAST: Final = "999.99"


class KindOfNodes(Row, frozen=True, kw_only=True):
    """Nodes that are alike in GPU, driver and host architecture."""

    gpus: list[str]
    driver: str
    arch: str
    nodes: int
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


class DriverUpgrade(Row, frozen=True, kw_only=True):
    """What a driver branch on the nodes of some kinds would add: cells, uncovered nodes and the oldest torch."""

    branch: str
    kinds: list[int]
    nodes: int
    cells: list[str]
    uncovered: int
    oldest_torch: str | None


class FleetPlan(Row, frozen=True, kw_only=True):
    """The plan. `cells` are the fewest published cells that cover every node that any of them covers.

    `oldest_torch` is that of the chosen cells. `upgrades` are those that need fewer cells, cover more nodes, or give a
    newer oldest torch.
    """

    schema: Literal["envcheck/fleet-plan/1"] = SCHEMA
    wanted: dict[str, str]
    nodes: int
    kinds: list[KindOfNodes]
    cells: list[PlannedCell]
    uncovered: list[UncoveredKind]
    oldest_torch: str | None
    upgrades: list[DriverUpgrade]
    notes: list[str]


class _CellChoice(NamedTuple):
    cells: list[Cell]
    uncovered: set[int]
    verdicts: dict[Cell, dict[int, str]]


def plan(matrix: Matrix, inventory: Inventory, wish: Query) -> FleetPlan:
    """Return the plan for a wish (torch, variant, cuda, python). Raise ConfigError for more than 40 kinds of nodes."""
    kinds = sorted(inventory.counts, key=lambda kind: (-inventory.counts[kind], kind))
    if len(kinds) > MOST_KINDS:
        message = f"{len(kinds)} kinds of nodes (GPU, driver, architecture) are more than the {MOST_KINDS} of one plan"
        raise ConfigError(message, fix="plan for a part of the fleet at a time")
    counts = [inventory.counts[kind] for kind in kinds]
    _refuse_unknown_gpus(matrix, inventory)
    judge = _Judge(matrix, wish)
    now = _choose(kinds, judge)
    return FleetPlan(
        wanted={name: value for name in ("torch", "variant", "cuda", "python") if (value := getattr(wish, name))},
        nodes=sum(counts),
        kinds=[
            KindOfNodes(
                gpus=[*k.gpus], driver=k.driver, arch=k.arch, nodes=inventory.counts[k], names=inventory.names[k]
            )
            for k in kinds
        ],
        cells=_planned(now, counts),
        uncovered=[_uncovered(place, judge.resolved(kinds[place])) for place in sorted(now.uncovered)],
        oldest_torch=_oldest(now.cells),
        upgrades=[*_upgrades(matrix, kinds, counts, judge, now)],
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


class _Judge:
    """The verdicts on the published cells for a kind of node, each kind judged once."""

    def __init__(self, matrix: Matrix, wish: Query) -> None:
        self._matrix, self._wish, self._facts = matrix, wish, Facts(matrix)
        self._published = {cell: matrix.archs(cell) for cell in matrix.cells()}
        self._known: dict[NodeKind, dict[Cell, str]] = {}

    def query(self, kind: NodeKind) -> Query:
        """Return the wish for one kind of node."""
        return self._wish.replace(driver=kind.driver, gpus=[*kind.gpus], arch=kind.arch)

    def verdicts(self, kind: NodeKind) -> dict[Cell, str]:
        """Return the published cells that run there, the best first, with their verdicts."""
        if kind not in self._known:
            query = self.query(kind)
            validate(self._facts, query)
            devices = requested_devices(self._facts, query)
            ranking = candidates(self._facts, query, devices, host_arch(query, devices))
            legal = ((cell, row.verdict.name) for row in ranking if row.legal for cell in row.cells())
            self._known[kind] = {cell: name for cell, name in legal if kind.arch in self._published.get(cell, ())}
        return self._known[kind]

    def resolved(self, kind: NodeKind) -> Any:
        """Return the resolution for a kind, with its reasons."""
        return resolve(self._matrix, self.query(kind))


def _choose(kinds: Sequence[NodeKind], judge: _Judge) -> _CellChoice:
    verdicts: dict[Cell, dict[int, str]] = {}
    for place, kind in enumerate(kinds):
        for cell, verdict in judge.verdicts(kind).items():
            verdicts.setdefault(cell, {})[place] = verdict
    # Of cells that cover the same kinds equally well the first is kept: the resolver ranks the better Python first.
    sets: dict[CoverSet, Cell] = {}
    for cell, covered in verdicts.items():
        mask = sum(1 << place for place in covered)
        sets.setdefault(CoverSet(mask, _score(cell, covered)), cell)
    elements = 0
    for one in sets:
        elements |= one.mask
    chosen = smallest_cover(elements, [*sets]) or []
    cells = [[*sets.values()][place] for place in chosen]
    uncovered = {place for place in range(len(kinds)) if not elements >> place & 1}
    return _CellChoice(sorted(cells, key=lambda cell: key(cell.torch), reverse=True), uncovered, verdicts)


def _score(cell: Cell, covered: Mapping[int, str]) -> tuple[int, ...]:
    """Return how good a cell is: the newest torch, then how well it runs where it runs worst."""
    version = (*key(cell.torch), 0, 0, 0)[:3]
    return (*version, min(_QUALITY[verdict] for verdict in covered.values()))


def _planned(chosen: _CellChoice, counts: Sequence[int]) -> list[PlannedCell]:
    """Return the cells with their nodes; a node that several cover gets the newest torch that runs best there."""
    homes: dict[Cell, dict[str, str]] = {cell: {} for cell in chosen.cells}
    nodes = dict.fromkeys(chosen.cells, 0)
    for place, count in enumerate(counts):
        fitting = [cell for cell in chosen.cells if place in chosen.verdicts[cell]]
        if fitting:
            best = max(fitting, key=lambda cell: (key(cell.torch), _QUALITY[chosen.verdicts[cell][place]]))
            homes[best][str(place)] = chosen.verdicts[best][place]
            nodes[best] += count
    return [PlannedCell(cell=str(cell), nodes=nodes[cell], verdicts=homes[cell]) for cell in chosen.cells]


def _uncovered(place: int, resolution: Any) -> UncoveredKind:
    reason = "; ".join(resolution.reasons)
    if resolution.legal:
        why = f"{resolution.cell} runs there ({resolution.verdict}), and no cell that does is published"
        return UncoveredKind(kind=place, verdict="not-published", reason=why, buildable=resolution.buildable)
    return UncoveredKind(kind=place, verdict=resolution.verdict, reason=reason, buildable=None)


def _oldest(cells: Iterable[Cell]) -> str | None:
    return min((cell.torch for cell in cells), key=key, default=None)


def _upgrades(
    matrix: Matrix, kinds: Sequence[NodeKind], counts: Sequence[int], judge: _Judge, now: _CellChoice
) -> Iterable[DriverUpgrade]:
    """Yield what each newer driver branch would add on the nodes that are below it and that it still drives."""
    best = _worth(now, counts)
    for newer in sorted({row.branch for row in matrix.drivers}, key=key):
        upgraded = [
            place
            for place, kind in enumerate(kinds)
            if key(branch(kind.driver)) < key(newer) and judge.verdicts(_with(kind, newer))
        ]
        changed = [_with(kind, newer) if place in upgraded else kind for place, kind in enumerate(kinds)]
        after = _choose(changed, judge) if upgraded else now
        worth = _worth(after, counts)
        if worth > best:
            best = worth
            yield DriverUpgrade(
                branch=newer,
                kinds=upgraded,
                nodes=sum(counts[place] for place in upgraded),
                cells=[str(cell) for cell in after.cells],
                uncovered=sum(counts[place] for place in after.uncovered),
                oldest_torch=_oldest(after.cells),
            )


def _with(kind: NodeKind, newer: str) -> NodeKind:
    return kind._replace(driver=f"{newer}.{_LAST}")


def _worth(chosen: _CellChoice, counts: Sequence[int]) -> tuple[int, int, tuple[int, ...]]:
    """Return what plans are compared by: fewer nodes without a cell, fewer cells, a newer oldest torch."""
    torch = _oldest(chosen.cells)
    return -sum(counts[place] for place in chosen.uncovered), -len(chosen.cells), key(torch) if torch else ()


# Larger is better, field by field; of several sets the sorted list is compared, the worst first.
Score = tuple[int, ...]


class CoverSet(NamedTuple):
    """A set: the elements it covers as bits, and how good it is."""

    mask: int
    score: Score


def smallest_cover(elements: int, sets: Sequence[CoverSet]) -> list[int] | None:
    """Return the places of the fewest sets that cover the elements (bits), None where all of them together do not.

    Of covers of one size the one whose worst score is best is returned, then whose second worst is; then the first.
    """
    union = 0
    for one in sets:
        union |= one.mask
    if elements & ~union:
        return None
    size = 0
    while True:
        best = _best(elements, sets, size)
        if best is not None:
            return best
        size += 1


def value(places: Sequence[int], sets: Sequence[CoverSet]) -> list[Score]:
    """Return what covers of one size are compared by: the larger is better."""
    return sorted(sets[place].score for place in places)


def _best(elements: int, sets: Sequence[CoverSet], size: int) -> list[int] | None:
    best: list[int] | None = None
    for places in _covers(elements, sets, size):
        cover = sorted(places)
        if best is None or (value(cover, sets), [-p for p in cover]) > (value(best, sets), [-p for p in best]):
            best = cover
    return best


def _covers(missing: int, sets: Sequence[CoverSet], size: int) -> Iterator[list[int]]:
    """Yield every cover of at most `size` sets of which each covers something that those before it do not."""
    if not missing:
        yield []
        return
    if size == 0 or max((one.mask & missing).bit_count() for one in sets) * size < missing.bit_count():
        return
    for place in min((_covering(bit, sets) for bit in _bits(missing)), key=len):
        for cover in _covers(missing & ~sets[place].mask, sets, size - 1):
            yield [place, *cover]


def _bits(mask: int) -> Iterator[int]:
    while mask:
        yield mask & -mask
        mask &= mask - 1


def _covering(bit: int, sets: Sequence[CoverSet]) -> list[int]:
    return [place for place, one in enumerate(sets) if one.mask & bit]
