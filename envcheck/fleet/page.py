"""The answer for a fleet as one HTML page that a person reads in a minute; it needs no network, no script, no font.

Nodes that are alike in every check are one row, so that a thousand nodes are a few rows; each node has its own row
below, folded away.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from envcheck.counting import counted
from envcheck.fleet import terminal
from envcheck.fleet.database import FleetDatabase
from envcheck.fleet.hostlist import natural
from envcheck.fleet.model import BAD, ConfigurationDrift, FleetReport, Outlier
from envcheck.fleet.one_report import BY_SEVERITY
from envcheck.fleet.summary import FleetAnswer
from envcheck.reports import phrases
from envcheck.reports.charts import SIZES, Figure, PlotLine, chart, legend
from envcheck.reports.formats.html import definitions, document, figure, text, wide

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


_CSS: Final = Path(__file__).with_name("page.css")
# Rows of a table, and of the matrix of single nodes; what is beyond is counted, and whole in --json.
_ROWS: Final = 60
_NODES: Final = 2000
_QUIET: Final = ("pass", "skip", ABSENT)
_SHORT: Final = {"pass": "·", "skip": "-", ABSENT: ""}
_FLAG: Final = "outlier"
# What a state of a node is called; of a check, `error` stays the word.
_CALLED: Final = {"error": "undetermined"}
_LEGEND: Final = '<p class="soft">· passed; - does not apply; empty: not in that run</p>'


def page(database: FleetDatabase, answer: FleetAnswer) -> str:
    """Return the page."""
    report, checks = answer.report, matrix(database, answer)
    cells = _Cells(report, findings(database, answer))
    parts = [
        ("nodes", "Nodes that are not fit", _reasons(report)),
        ("matrix", "Nodes and checks", _alike(answer, checks, cells)),
        ("outliers", "Outliers", _outliers(report.outliers)),
        ("drift", "Drift", _drift(report)),
        ("curves", "Curves, laid over each other", _curves(report, overlays(database, answer))),
        ("groups", "Groups", _groups(report)),
        ("notes", "Notes", _notes(report)),
        ("all", "Each node", _each(answer, checks, cells)),
    ]
    shown = [(name, title, inner) for name, title, inner in parts if inner]
    links = "".join(f'<a href="#{name}">{text(title)}</a>' for name, title, _ in shown)
    sections = "".join(
        f'<section id="{name}"><h2>{text(title)}</h2>\n{inner}</section>\n' for name, title, inner in shown
    )
    body = f'{_head(report)}<nav aria-label="Sections">{links}</nav>\n<main>\n{sections}</main>\n'
    footer = f"envcheck {report.tool}, {report.schema}, {report.at}"
    return document(f"envcheck fleet {report.verdict.status}", body, footer, _CSS.read_text(encoding="utf-8"))


class _Cells:
    """What a cell of the matrix says: the status, or that the value is far from the group's, and why."""

    def __init__(self, report: FleetReport, findings: dict[tuple[str, str], str]) -> None:
        self._findings = findings
        self._outliers = {(row.node, row.check): terminal.outlying(row) for row in report.outliers}

    def word(self, node: str, check: str, status: str) -> str:
        """Return the status of a cell; a pass whose value is an outlier is one."""
        return _FLAG if status in ("pass", "warn") and (node, check) in self._outliers else status

    def why(self, node: str, check: str) -> str:
        """Return why a cell is no plain pass; "" where it is."""
        return self._outliers.get((node, check), "") or self._findings.get((node, check), "")


def _head(report: FleetReport) -> str:
    states = {"pass": report.nodes.passed} | {state: len(report.nodes.of(state)) for state in BAD}
    counts = "".join(
        f'<span class="status {word}">{count:,} {_CALLED.get(word, word)}</span>'
        for word, count in states.items()
        if count
    )
    good = f"<code>{text(report.verdict.good)}</code>" if report.verdict.good else "no node"
    facts = [
        ("drift", counted(len(report.drift), "signal")),
        ("outliers", counted(len(report.outliers), "value")),
        ("files", f"{report.files:,}, {report.read:,} of them new"),
        ("at", report.at),
    ]
    return (
        f'<header class="verdict {report.verdict.status}"><h1>{text(report.verdict.sentence)}</h1>'
        f'<p class="counts">{counts}</p><p class="good">Use now: {good}</p>{definitions(facts)}</header>\n'
    )


def _called(state: str) -> str:
    return _CALLED.get(state, state)


def _reasons(report: FleetReport) -> str:
    rows = []
    for state in BAD:
        alike = defaultdict(list)
        for node in report.nodes.of(state):
            alike[report.reasons.get(node, "")].append(node)
        rows += [
            (f'<span class="status {state}">{_called(state)}</span>', _names(nodes), text(why))
            for why, nodes in alike.items()
        ]
    return _table("nodes", ("state", "nodes", "why"), rows)


def _alike(answer: FleetAnswer, matrix: CheckMatrix, cells: _Cells) -> str:
    """Return the matrix with one row for all nodes that are alike, and only the checks in which any differs."""
    rows: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for node in matrix.rows:
        words = tuple(map(cells.word, itertools.repeat(node), matrix.checks, matrix.words(node)))
        rows[answer.states[node].state, words].append(node)
    telling = [
        place
        for place in range(len(matrix.checks))
        if any(words[place] not in _QUIET for _, words in rows) or len({words[place] for _, words in rows}) > 1
    ]
    if not rows:
        return ""
    equal_checks = len(matrix.checks) - len(telling)
    body = []
    for (state, words), nodes in itertools.islice(rows.items(), _ROWS):
        inner = "".join(_cell(words[place], cells.why(nodes[0], matrix.checks[place])) for place in telling)
        head = f'<th scope="row">{_names(nodes)}<span class="soft"> {counted(len(nodes), "node")}</span></th>'
        body.append(f'<tr>{head}<td class="status {state}">{_called(state)}</td>{inner}</tr>\n')
    others = f"{counted(equal_checks, 'more check')} passed, or did not apply, on all of these nodes alike."
    note = _LEGEND + (f"<p>{others}</p>" if equal_checks else "")
    return _matrix_table([matrix.checks[place] for place in telling], body) + _more(len(rows) - _ROWS) + note


def _each(answer: FleetAnswer, matrix: CheckMatrix, cells: _Cells) -> str:
    body = []
    for node in itertools.islice(matrix.rows, _NODES):
        words = [cells.word(node, check, word) for check, word in zip(matrix.checks, matrix.words(node), strict=True)]
        state = answer.states[node].state
        body.append(
            f'<tr><th scope="row">{text(node)}</th><td class="status {state}">{_called(state)}</td>{_run(words)}</tr>\n'
        )
    if not body:
        return ""
    table = _matrix_table(matrix.checks, body) + _more(len(matrix.rows) - _NODES)
    title = f"{counted(len(body), 'node')}, {counted(len(matrix.checks), 'check')}"
    return f"<details><summary>{title}</summary>{table}</details>\n"


def _run(words: Sequence[str]) -> str:
    """Return a row's cells; neighbours that are alike are one, so that a thousand rows stay small."""
    return "".join(_cell(word, "", sum(1 for _ in same)) for word, same in itertools.groupby(words))


def _cell(word: str, why: str, span: int = 1) -> str:
    across = f' colspan="{span}"' if span > 1 else ""
    title = f' title="{text(why)}"' if why else ""
    return f'<td class="cell {word}"{across}{title}>{_SHORT.get(word, word)}</td>'


def _matrix_table(checks: Iterable[str], body: Iterable[str]) -> str:
    titles = "".join(f'<th scope="col" class="turned"><span>{text(check)}</span></th>' for check in checks)
    head = f'<thead><tr><th scope="col">nodes</th><th scope="col">state</th>{titles}</tr></thead>'
    return wide(f'<table class="matrix">{head}\n<tbody>{"".join(body)}</tbody></table>', "Nodes and checks")


def _outliers(outliers: Sequence[Outlier]) -> str:
    rows = [
        (
            text(row.node),
            text(row.check),
            f'<span class="uuid">{text(row.gpu)}</span>',
            text(phrases.quantity(row.value, row.unit)),
            text(phrases.quantity(row.median, row.unit)),
            text(terminal.off_by(row)),
            f"{row.z:g}",
        )
        for row in outliers
    ]
    return _table("outliers", ("node", "check", "GPU", "value", "median", "off by", "z"), rows)


def _drift(report: FleetReport) -> str:
    rows = [
        (text(row.signal), _majority(row), _names(nodes), text(value), str(row.group))
        for row in report.drift
        for value, nodes in row.others.items()
    ]
    return _table("drift", ("signal", "most of the group have", "these nodes", "have", "group"), rows)


def _majority(row: ConfigurationDrift) -> str:
    if row.majority is None:
        return '<span class="soft">no majority</span>'
    return f'{text(row.majority)} <span class="soft">({row.share:.2%})</span>'


def _curves(report: FleetReport, overlays: Iterable[Overlay]) -> str:
    several = len(report.groups) > 1
    drawn = []
    for overlay in overlays:
        group = f", group {overlay.group}" if several else ""
        left_out = f"; {counted(overlay.left_out, 'more curve')} like these not drawn" if overlay.left_out else ""
        caption = f"{overlay.name}{group}: GB/s by message size, {counted(len(overlay.lines), 'node')}{left_out}"
        drawing = chart(overlay.lines, SIZES, "GB/s", None, caption)
        keys = legend(overlay.lines) if any(line.hot for line in overlay.lines) else []
        drawn.append(figure(Figure(caption, drawing, keys)))
    return f'<div class="figures">{"".join(drawn)}</div>\n' if drawn else ""


def _groups(report: FleetReport) -> str:
    rows = [(str(number), text(terminal.described(group))) for number, group in enumerate(report.groups)]
    return _table("groups", ("group", "nodes"), rows)


def _notes(report: FleetReport) -> str:
    lines = terminal.ignored(report) + report.notes
    items = "".join(f"<li>{text(line)}</li>" for line in lines[:_ROWS])
    return f"<ul>{items}</ul>{_more(len(lines) - _ROWS)}" if lines else ""


def _table(kind: str, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of cells that are safe already; "" without a row."""
    if not rows:
        return ""
    head = "".join(f'<th scope="col">{text(title)}</th>' for title in titles)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>\n" for row in rows[:_ROWS])
    table = f'<table class="{kind}"><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>'
    return wide(table, kind) + _more(len(rows) - _ROWS)


def _more(number: int) -> str:
    return f'<p class="soft">and {counted(number, "more row")}: see --json</p>' if number > 0 else ""


def _names(nodes: Sequence[str]) -> str:
    return f'<span class="names">{text(terminal.names(nodes))}</span>'
