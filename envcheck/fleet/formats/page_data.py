"""What the page of a fleet shows, read off the database: the matrix of nodes and checks, and the curves."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from envcheck.fleet.hostlist import natural
from envcheck.fleet.reading.database import FleetDatabase
from envcheck.fleet.reading.one_report import BY_SEVERITY
from envcheck.fleet.summary.summarize import FleetAnswer
from envcheck.reports.html.svg import PlotLine

# What a node's row has where the check was not part of its run.
ABSENT: Final = "absent"
_WORDS: Final = (*BY_SEVERITY, ABSENT)
_ORDER: Final = ("fail", "error", "missing", "stale", "pass")
# As many curves that are not flagged a drawing; more cannot be told apart.
CALM: Final = 300
_HOT: Final = 8


class CheckMatrix(NamedTuple):
    """The checks, and of each node one status for each check, in their order."""

    checks: list[str]
    rows: dict[str, bytes]

    def words(self, node: str) -> list[str]:
        """Return a node's statuses."""
        return [_WORDS[place] for place in self.rows[node]]


class Overlay(NamedTuple):
    """The curves of one check in one group: those of flagged nodes stand out; `left_out` others are not drawn."""

    group: int
    name: str
    lines: list[PlotLine]
    left_out: int


def matrix(database: FleetDatabase, answer: FleetAnswer) -> CheckMatrix:
    """Return the statuses of all nodes that have a run, the worst nodes first."""
    far = {row.node for row in answer.report.outliers}
    nodes = sorted(
        answer.states.values(),
        key=lambda state: (_ORDER.index(state.state), state.node not in far, natural(state.node)),
    )
    of_run = {state.run: state.node for state in nodes if state.run is not None}
    names = database.rows("SELECT id, text FROM names WHERE id IN (SELECT DISTINCT name FROM outcomes) ORDER BY id")
    absent = len(_WORDS) - 1
    rows = {state.node: bytearray([absent]) * len(names) for state in nodes if state.run is not None}
    for place, (identity, _) in enumerate(names):
        for run, status in database.each("SELECT run, status FROM outcomes WHERE name = ?", (identity,)):
            if run in of_run:
                rows[of_run[run]][place] = status
    used = [place for place in range(len(names)) if any(row[place] != absent for row in rows.values())]
    kept = {node: bytes(row[place] for place in used) for node, row in rows.items()}
    return CheckMatrix([names[place][1] for place in used], kept)


def findings(database: FleetDatabase, answer: FleetAnswer) -> dict[tuple[str, str], str]:
    """Return what each check that is no pass found on a node, by node and check."""
    of_run = {state.run: state.node for state in answer.states.values() if state.run is not None}
    query = "SELECT run, text, code, summary FROM outcomes JOIN names ON names.id = name WHERE code IS NOT NULL"
    rows = (row for row in database.each(query) if row[0] in of_run)
    return {(of_run[run], check): f"{code}: {summary}" if code else summary for run, check, code, summary in rows}


def overlays(database: FleetDatabase, answer: FleetAnswer) -> list[Overlay]:
    """Return the curves of each check, laid over each other by group; nodes that failed or are far off stand out."""
    failed = {blame.node for blame in answer.report.verdict.blame}
    of_run = {run.run: (number, run.node) for number, group in enumerate(answer.groups) for run in group.runs}
    curves_drawn = []
    for identity, name in database.rows("SELECT id, text FROM names WHERE id IN (SELECT DISTINCT name FROM curves)"):
        curves: dict[int, dict[str, Sequence[tuple[float, float]]]] = defaultdict(dict)
        for run, points in database.each("SELECT run, points FROM curves WHERE name = ?", (identity,)):
            if run in of_run:
                group, node = of_run[run]
                curves[group][node] = [(at, value) for at, value in json.loads(points)]
        check = name.partition(":")[0]
        flagged = failed | {row.node for row in answer.report.outliers if row.check == check}
        curves_drawn += [_overlay(group, name, nodes, flagged) for group, nodes in sorted(curves.items())]
    return curves_drawn


def _overlay(
    group: int, name: str, nodes: Mapping[str, Sequence[tuple[float, float]]], flagged: Collection[str]
) -> Overlay:
    hot = sorted((node for node in nodes if node in flagged), key=lambda node: nodes[node][-1][1])
    calm = sorted((node for node in nodes if node not in flagged), key=lambda node: nodes[node][-1][1])
    step = max(1, -(-len(calm) // CALM))
    drawn = [*calm[::step], *([calm[-1]] if calm and (len(calm) - 1) % step else [])]
    lines = [PlotLine(node, nodes[node], dotted=False) for node in drawn]
    lines += [PlotLine(node, nodes[node], hot=True) for node in hot[:_HOT]]
    return Overlay(group, name, lines, len(calm) - len(drawn) + len(hot[_HOT:]))
