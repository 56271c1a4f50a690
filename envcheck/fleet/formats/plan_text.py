"""A plan for a fleet as lines of 80 columns: the cells first, then which nodes have none, then what a driver buys."""

from __future__ import annotations

from collections.abc import Iterator

from envcheck.counting import counted
from envcheck.fleet.cover.plan import FleetPlan, KindOfNodes
from envcheck.fleet.formats.terminal import names, section, wrapped


def plan_lines(plan: FleetPlan) -> Iterator[str]:
    """Yield the lines."""
    without = sum(plan.kinds[row.kind].nodes for row in plan.uncovered)
    images = counted(len(plan.cells), "published cell")
    head = (
        f"{images} for {plan.nodes - without} of {counted(plan.nodes, 'node')}"
        if plan.cells
        else "no published cell runs on any node"
    )
    yield from wrapped(head, "")
    for cell in plan.cells:
        where = "; ".join(f"{_kind(plan.kinds[int(place)])} ({verdict})" for place, verdict in cell.verdicts.items())
        yield from wrapped(f"{cell.cell}: {where}", "  ")
    yield from section(
        "No published cell",
        [
            f"{_kind(plan.kinds[row.kind])}: {row.verdict}: {row.reason}{_build(row.buildable)}"
            for row in plan.uncovered
        ],
    )
    yield from section("What a newer driver would add", [_upgrade(plan, place) for place in range(len(plan.upgrades))])
    yield from section("Note", plan.notes)


def _kind(kind: KindOfNodes) -> str:
    who = names(kind.names) if len(kind.names) == kind.nodes else f"{names(kind.names)} x{kind.nodes}"
    return f"{who} ({' + '.join(kind.gpus)}, driver {kind.driver}{', aarch64' if kind.arch != 'x86_64' else ''})"


def _build(cell: str | None) -> str:
    return "" if cell is None else f"; `envcheck build {cell}` makes it"


def _upgrade(plan: FleetPlan, place: int) -> str:
    row = plan.upgrades[place]
    where = ",".join(names(plan.kinds[kind].names) for kind in row.kinds)
    torch = f", torch {row.oldest_torch} or newer everywhere" if row.oldest_torch else ""
    before = sum(plan.kinds[kind.kind].nodes for kind in plan.uncovered)
    without = (
        f", {counted(row.uncovered, 'node')} without a cell instead of {before}" if row.uncovered != before else ""
    )
    fewer = f" instead of {len(plan.cells)}" if len(row.cells) != len(plan.cells) else " as before"
    cells = f"{counted(len(row.cells), 'image')}{fewer}"
    return f"driver {row.branch} on {counted(row.nodes, 'node')} ({where}): {cells}{torch}{without}"
