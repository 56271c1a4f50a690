"""Which published cells a fleet needs: the fewest that cover all nodes, what covers none, what a driver would add."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from envcheck.errors import ConfigError
from envcheck.fleet.cover.inventory import Inventory, NodeKind
from envcheck.fleet.cover.set_cover import CoverSet, smallest_cover
from envcheck.matrix.facts.gpu_names import find_gpu, suggest
from envcheck.matrix.facts.lookup import Facts
from envcheck.matrix.facts.model import Cell, Matrix
from envcheck.matrix.facts.versions import branch, key
from envcheck.matrix.resolver.candidates import candidates
from envcheck.matrix.resolver.query import Query, host_arch, requested_devices, validate
from envcheck.matrix.resolver.resolve import resolve
from envcheck.matrix.resolver.verdict import FORWARD, MINOR, OK
from envcheck.runner.schema import Row

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
                hint = f"did you mean {near}?" if near else "`envcheck matrix show --gpus` lists them"
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
