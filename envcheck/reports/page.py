"""A report as one HTML page that needs nothing else: no network, no script, no font."""

from __future__ import annotations

import json
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any, Final

import msgspec

from envcheck.node import snapshot
from envcheck.reports import drawings, gpus, words
from envcheck.reports.culprits import FINDINGS
from envcheck.reports.model import RunReport
from envcheck.runner.record import OutcomeRow

_CSS: Final = Path(__file__).with_name("page.css")
_ORDER: Final = ("fail", "error", "warn", "pass", "skip")
# Nothing may be fetched, whatever a log smuggles in.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"


def page(report: RunReport) -> str:
    """Return the page: the verdict, what is wrong, the GPUs, all checks, the curves; evidence folded away."""
    title = f"{report.verdict.status}: {report.host.name}, {report.target.name}"
    body = [_verdict(report), _findings(report), _gpus(report), _checks(report), _figures(report), _evidence(report)]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(f'envcheck {title}')}</title>\n"
        f"<style>\n{_CSS.read_text(encoding='utf-8')}</style>\n</head>\n<body>\n"
        f"{''.join(body)}<footer>envcheck {_text(report.tool)}, {_text(report.schema)}</footer>\n</body>\n</html>\n"
    )


def _verdict(report: RunReport) -> str:
    counts = "".join(
        f'<span class="status {status}">{report.verdict.counts.get(status, 0)} {status}</span>'
        for status in _ORDER
        if report.verdict.counts.get(status)
    )
    host = f"{report.host.name} ({report.host.system} {report.host.kernel} {report.host.arch})"
    ended = f"{report.started} to {report.ended or 'never: it was cut short'}, level {report.plan.level}"
    facts = [
        ("host", host),
        ("ran on", words.hardware(report)),
        ("target", f"{report.target.name} ({report.target.chosen})"),
        ("with", words.environment(report.environment) or "unknown"),
        ("cell", report.promises.get("cell", "")),
        ("resolved", report.resolution or ""),
        ("when", ended),
        ("never ran", ", ".join(words.unfinished(report))),
    ]
    sentence = f"<h1>{_text(report.verdict.sentence)}</h1>"
    shown = _list((title, value) for title, value in facts if value)
    return f'<header class="verdict {report.verdict.status}">{sentence}<p class="counts">{counts}</p>{shown}</header>\n'


def _findings(report: RunReport) -> str:
    groups = [same for same in words.alike(report.outcomes) if same[0].status in FINDINGS]
    cards = [_finding(same) for same in sorted(groups, key=lambda same: _ORDER.index(same[0].status))]
    return f"<h2>What is wrong, and what to do</h2>\n{''.join(cards)}" if cards else ""


def _finding(same: list[OutcomeRow]) -> str:
    first = same[0]
    names = ", ".join(outcome.id for outcome in same)
    shown = _list(words.particulars(first))
    return f'<section class="finding {first.status}"><h3>{_status(first.status)} {_text(names)}</h3>{shown}</section>\n'


def _gpus(report: RunReport) -> str:
    titles, rows = gpus.table(report)
    if not rows:
        return ""
    head = "".join(f"<th>{_text(title)}</th>" for title in titles)
    body = "".join(f"<tr>{''.join(_cell(cell) for cell in row)}</tr>\n" for row in rows)
    return (
        f'<h2>GPUs</h2>\n<div class="wide"><table class="gpus"><thead><tr>{head}</tr></thead>\n{body}</table></div>\n'
    )


def _cell(cell: gpus.Cell) -> str:
    why = f' title="{_text(cell.why)}"' if cell.why else ""
    kind = f' class="{"uuid" if cell.status == "code" else f"status {cell.status}"}"' if cell.status else ""
    return f"<td{kind}{why}>{_text(cell.text)}</td>"


def _checks(report: RunReport) -> str:
    groups = sorted(words.alike(report.outcomes), key=lambda same: _ORDER.index(same[0].status))
    rows = "".join(_row(same) for same in groups)
    head = '<thead><tr><th>status</th><th>check</th><th>what was found</th><th class="number">value</th>'
    head += '<th class="number">limit</th><th class="number">seconds</th></tr></thead>'
    return f'<h2>Checks</h2>\n<div class="wide"><table class="checks">{head}\n{rows}</table></div>\n'


def _row(same: list[OutcomeRow]) -> str:
    first = same[0]
    names = "<br>".join(_text(outcome.id) for outcome in same)
    value = words.quantity(first.value, first.unit) if words.number(first.value) is not None else ""
    limit = words.bound(first) if value else ""
    timed = first.kind == "env" and first.attempts and first.status != "skip" and len(same) == 1
    seconds = f"{first.seconds:.1f}" if timed else ""
    numbers = "".join(f'<td class="number">{_text(text)}</td>' for text in (value, limit, seconds))
    soft = ' class="soft"' if first.status == "skip" else ""
    cells = f'<td>{_status(first.status)}</td><td class="id">{names}</td><td{soft}>{_text(first.summary)}</td>{numbers}'
    return f"<tr>{cells}</tr>\n"


def _figures(report: RunReport) -> str:
    drawn = "".join(figure for outcome in report.outcomes for figure in _figure(outcome))
    return f"<h2>Measured</h2>\n{drawn}" if drawn else ""


def _figure(outcome: OutcomeRow) -> Iterable[str]:
    curves = drawings.lines(outcome.details)
    if curves:
        judged = outcome.limit if outcome.unit == "GB/s" and outcome.limit and outcome.limit.unit == "GB/s" else None
        bound = words.number(judged.value) if judged else None
        yield _captioned(
            drawings.curve(curves, bound, f"{outcome.id} by size"), f"{outcome.id}: bandwidth by message size"
        )
    slow = drawings.ranks_map(outcome)
    if slow:
        yield _captioned(slow, f"{outcome.id}: time of each rank against the middle one, by message size")
    reached = drawings.values_map(outcome)
    if reached:
        yield _captioned(
            reached, f"{outcome.id}: {outcome.unit} of each rank (the stronger, the further behind the best)"
        )
    for name, value in outcome.details.items():
        square = drawings.matrix(value, f"{outcome.id} {name}")
        if square:
            unit = f", {outcome.unit}" if outcome.unit else ""
            yield _captioned(square, f"{outcome.id}: {name}{unit} (the stronger, the further below the best)")


def _captioned(svg: str, caption: str) -> str:
    return f'<figure><figcaption>{_text(caption)}</figcaption><div class="wide">{svg}</div></figure>\n'


def _evidence(report: RunReport) -> str:
    promises = {check.id: check.promise for check in report.plan.checks}
    checks = "".join(_folded(f"{o.id}: {promises.get(o.id, o.summary)}", _known(o)) for o in report.outcomes)
    whole = {
        "the node as it was read": snapshot.to_json(report.snapshot),
        "the environment": report.environment,
        "its promises": report.promises,
        "the plan": msgspec.to_builtins(report.plan),
        "the place in its group": msgspec.to_builtins(report.host.place),
    }
    rest = "".join(_folded(title, value) for title, value in whole.items() if value)
    return f'<div class="evidence"><h2>Evidence</h2>\n{checks}{rest}</div>\n'


def _known(outcome: OutcomeRow) -> dict[str, Any]:
    kept = msgspec.to_builtins(outcome)
    return {key: value for key, value in kept.items() if value not in (None, "", [], {}) and key not in ("id", "kind")}


def _folded(title: str, value: Any) -> str:
    told = json.dumps(value, indent=1, ensure_ascii=False)
    return f"<details><summary>{_text(title)}</summary><pre>{_text(told)}</pre></details>\n"


def _list(pairs: Iterable[tuple[str, str]]) -> str:
    return f"<dl>{''.join(f'<dt>{_text(title)}</dt><dd>{_text(text)}</dd>' for title, text in pairs)}</dl>"


def _status(status: str) -> str:
    return f'<span class="status {status}">{status}</span>'


def _text(text: str) -> str:
    return escape(words.printable(str(text)), quote=True)
