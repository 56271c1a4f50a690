"""What people read of a group: which nodes it blames, and the table of links between nodes."""

from __future__ import annotations

from typing import Any, Final

from envcheck.fleet.group.node_report import blamed
from envcheck.fleet.hostlist import fold
from envcheck.reports.model import RunReport

_LINKS: Final = "node-links"
_WIDEST: Final = 16
_COLUMN: Final = 9


def lines(report: RunReport) -> list[str]:
    """Return the lines under a group's outcomes: its links, the nodes it blames, and the rest."""
    if report.group is None:
        return []
    named = blamed(report.outcomes, report.group)
    rest = [node for node in report.group.nodes if node not in named]
    details: dict[str, Any] = next((outcome.details for outcome in report.outcomes if outcome.id == _LINKS), {})
    found = [f"{node}: {', '.join(checks)}" for node, checks in named.items()]
    if found and rest:
        found.append(f"not blamed: {fold(rest)}")
    return [*links(details), *found]


def links(details: dict[str, Any]) -> list[str]:
    """Return the table of GB/s from each node (a row) to each other one; the slowest links where it is too wide."""
    nodes, speeds = details.get("nodes"), details.get("gigabytes_per_second")
    if not isinstance(nodes, list) or not isinstance(speeds, list):
        return []
    if len(nodes) > _WIDEST:
        measured = [
            (speed, source, target)
            for source, row in zip(nodes, speeds, strict=True)
            for target, speed in zip(nodes, row, strict=True)
            if speed is not None
        ]
        return [
            "the slowest links, GB/s",
            *(f"  {a} -> {b}: {speed:.2f}" for speed, a, b in sorted(measured)[:_WIDEST]),
        ]
    first = max(len(str(node)) for node in nodes)
    head = f"{'GB/s':<{first}}" + "".join(f"{str(node)[-_COLUMN + 1 :]:>{_COLUMN}}" for node in nodes)
    rows = [
        f"{node!s:<{first}}" + "".join(f"{'-' if speed is None else format(speed, '.2f'):>{_COLUMN}}" for speed in row)
        for node, row in zip(nodes, speeds, strict=True)
    ]
    return [head, *rows]
