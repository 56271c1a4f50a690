"""The answer for a fleet as one HTML page that a person reads in a minute; it needs no network, no script, no font.

Nodes that are alike in every check are one row, so that a thousand nodes are a few rows.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from envcheck.counting import counted
from envcheck.fleet import terminal
from envcheck.fleet.hostlist import natural
from envcheck.fleet.model import BAD, FleetReport
from envcheck.fleet.summary import FleetAnswer
from envcheck.reports.formats.html import definitions, document, text, wide

_CSS: Final = Path(__file__).with_name("page.css")
_ORDER: Final = ("fail", "error", "missing", "stale", "pass")
# Rows of a table; what is beyond is counted, and whole in --json.
_ROWS: Final = 60
# What a node's row has where the check was not part of its run.
_ABSENT: Final = "absent"
_QUIET: Final = ("pass", "skip", _ABSENT)
_SHORT: Final = {"pass": "·", "skip": "-", _ABSENT: ""}
# What a state of a node is called; of a check, `error` stays the word.
_CALLED: Final = {"error": "undetermined"}
_LEGEND: Final = '<p class="soft">· passed; - does not apply; empty: not in that run</p>'


def page(answer: FleetAnswer) -> str:
    """Return the page."""
    report = answer.report
    parts = {
        "Nodes that are not fit": _reasons(report),
        "Nodes and checks": _alike(answer),
        "Outliers": _listed(map(terminal.outlying, report.outliers)),
        "Drift": _listed(map(terminal.drifted, report.drift)),
        "Groups": _listed(map(terminal.described, report.groups)),
        "Notes": _listed([*terminal.ignored(report), *report.notes]),
    }
    sections = "".join(f"<section><h2>{title}</h2>\n{inner}</section>\n" for title, inner in parts.items() if inner)
    footer = f"envcheck {report.tool}, {report.schema}, {report.at}"
    body = f"{_head(report)}<main>\n{sections}</main>\n"
    return document(f"envcheck fleet {report.verdict.status}", body, footer, _CSS.read_text(encoding="utf-8"))


def _head(report: FleetReport) -> str:
    states = {"pass": report.nodes.passed} | {state: len(report.nodes.of(state)) for state in BAD}
    counts = "".join(
        f'<span class="status {word}">{count:,} {_CALLED.get(word, word)}</span>'
        for word, count in states.items()
        if count
    )
    good = f"<code>{text(report.verdict.good)}</code>" if report.verdict.good else "no node"
    facts = [("files", f"{report.files:,}"), ("at", report.at)]
    return (
        f'<header class="verdict {report.verdict.status}"><h1>{text(report.verdict.sentence)}</h1>'
        f'<p class="counts">{counts}</p><p class="good">Use now: {good}</p>{definitions(facts)}</header>\n'
    )


def _reasons(report: FleetReport) -> str:
    body = []
    for state in BAD:
        alike = defaultdict(list)
        for node in report.nodes.of(state):
            alike[report.reasons.get(node, "")].append(node)
        body += [
            f"<tr>{_state(state)}<td>{_names(nodes)}</td><td>{text(why)}</td></tr>\n" for why, nodes in alike.items()
        ]
    return _table("nodes", ("state", "nodes", "why"), body) if body else ""


def _alike(answer: FleetAnswer) -> str:
    """Return the matrix with one row for all nodes that are alike, and only the checks in which any differs."""
    words, why = _words(answer)
    checks = sorted({check for row in words.values() for check in row})
    telling = []
    for check in checks:
        kinds = {row.get(check, _ABSENT) for row in words.values()}
        telling += [check] if len(kinds) > 1 or not kinds <= {*_QUIET} else []
    rows: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for node in sorted(words, key=lambda node: (_ORDER.index(answer.states[node].state), natural(node))):
        kinds_of_node = tuple(words[node].get(check, _ABSENT) for check in telling)
        rows[answer.states[node].state, kinds_of_node].append(node)
    body = []
    for (state, row_words), nodes in rows.items():
        head = f'<th scope="row">{_names(nodes)}<span class="soft"> {counted(len(nodes), "node")}</span></th>'
        cells = (_cell(word, why.get((nodes[0], check), "")) for check, word in zip(telling, row_words, strict=True))
        body.append(f"<tr>{head}{_state(state)}{''.join(cells)}</tr>\n")
    others = (
        f"{counted(len(checks) - len(telling), 'more check')} passed, or did not apply, on all of these nodes alike."
    )
    return _table("matrix", ("nodes", "state", *telling), body) + _LEGEND + f"<p>{others}</p>" if body else ""


def _words(answer: FleetAnswer) -> tuple[dict[str, dict[str, str]], dict[tuple[str, str], str]]:
    """Return each node's status by check, "outlier" for a pass far from its group; and why it is no plain pass."""
    why = {(row.node, row.check): terminal.outlying(row) for row in answer.report.outliers}
    far = {*why}
    words: dict[str, dict[str, str]] = {}
    for node, state in answer.states.items():
        report = state.file.report if state.file else None
        for check in report.checks if report else ():
            outlier = check.status in ("pass", "warn") and (node, check.check) in far
            words.setdefault(node, {})[check.check] = "outlier" if outlier else check.status
            if check.noted:
                why.setdefault((node, check.check), f"{check.code}: {check.summary}" if check.code else check.summary)
    return words, why


def _cell(word: str, why: str) -> str:
    title = f' title="{text(why)}"' if why else ""
    return f'<td class="cell {word}"{title}>{_SHORT.get(word, word)}</td>'


def _state(state: str) -> str:
    return f'<td class="status {state}">{_CALLED.get(state, state)}</td>'


def _listed(lines: Iterable[str]) -> str:
    items = [f"<li>{text(line)}</li>" for line in lines]
    return f"<ul>{''.join(items[:_ROWS])}</ul>{_more(len(items) - _ROWS)}" if items else ""


def _table(kind: str, titles: Sequence[str], body: Sequence[str]) -> str:
    """Return a table of rows that are safe already."""
    turned = ' class="turned"' if kind == "matrix" else ""
    head = "".join(f'<th scope="col"{turned}><span>{text(title)}</span></th>' for title in titles)
    rows = "".join(itertools.islice(body, _ROWS))
    table = f'<table class="{kind}"><thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table>'
    return wide(table, kind) + _more(len(body) - _ROWS)


def _more(number: int) -> str:
    return f'<p class="soft">and {counted(number, "more row")}: see --json</p>' if number > 0 else ""


def _names(nodes: Sequence[str]) -> str:
    return f'<span class="names">{text(terminal.names(nodes))}</span>'
