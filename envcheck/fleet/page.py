"""The answer for a fleet as one HTML page that a person reads in a minute; it needs no network, no script, no font.

Nodes that are alike in every check are one row, so that a thousand nodes are a few rows.
"""

from collections import defaultdict
from pathlib import Path
from typing import Final

from envcheck.counting import counted
from envcheck.data import rendered
from envcheck.fleet import terminal
from envcheck.fleet.model import BAD
from envcheck.fleet.summary import FleetAnswer
from envcheck.reports.formats.html import document, text

_CSS: Final = Path(__file__).with_name("page.css")
_ORDER: Final = (*BAD, "pass")
# Rows of a table; what is beyond is counted, and whole in --json.
_ROWS: Final = 60
_QUIET: Final = {"pass", "skip", "absent"}


def page(answer: FleetAnswer) -> str:
    """Return the page."""
    report = answer.report
    words, why = _words(answer)
    checks = sorted({check for row in words.values() for check in row})
    kinds = {check: {row.get(check, "absent") for row in words.values()} for check in checks}
    telling = [check for check in checks if len(kinds[check]) > 1 or not kinds[check] <= _QUIET]
    alike: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for node in sorted(words, key=lambda node: _ORDER.index(answer.states[node].state)):
        row = tuple(words[node].get(check, "absent") for check in telling)
        alike[answer.states[node].state, row].append(node)
    reasons: dict[tuple[str, str], list[str]] = defaultdict(list)
    for state in BAD:
        for node in report.nodes.of(state):
            reasons[state, report.reasons.get(node, "")].append(node)
    context = {
        "report": report,
        "counts": [("pass", report.nodes.passed), *((state, len(report.nodes.of(state))) for state in BAD)],
        "reasons": [(state, reason, nodes) for (state, reason), nodes in reasons.items()],
        "telling": telling,
        "alike": len(checks) - len(telling),
        "rows": [
            (state, nodes, [(word, why.get((nodes[0], check), "")) for check, word in zip(telling, row, strict=True)])
            for (state, row), nodes in alike.items()
        ],
        "lists": [
            ("Outliers", [*map(terminal.outlying, report.outliers)]),
            ("Drift", [*map(terminal.drifted, report.drift)]),
            ("Groups", [*map(terminal.described, report.groups)]),
            ("Notes", [*terminal.ignored(report), *report.notes]),
        ],
        "most": _ROWS,
        "text": text,
        "names": terminal.names,
        "counted": counted,
    }
    footer = f"envcheck {report.tool}, {report.schema}, {report.at}"
    body, css = rendered("fleet-page.html.j2", context), _CSS.read_text(encoding="utf-8")
    return document(f"envcheck fleet {report.verdict.status}", body, footer, css)


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
