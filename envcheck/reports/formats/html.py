"""A report as one HTML page that needs nothing else: no network, no script, no font. The parts of all our pages."""

from __future__ import annotations

import json
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any, Final

import msgspec

from envcheck.counting import printable
from envcheck.node import snapshot
from envcheck.reports import gpus, phrases
from envcheck.reports.charts import Figure, figures
from envcheck.reports.formats import Format
from envcheck.reports.gpus import FINDINGS
from envcheck.reports.model import RunReport
from envcheck.runner.schema import OutcomeRow

_CSS: Final = Path(__file__).with_name("page.css")
# A drawing wider than this, in pixels, gets the page's whole width.
_COLUMN: Final = 560
# Nothing may be fetched, whatever a log smuggles in.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_ORDER: Final = ("fail", "error", "warn", "pass", "skip")
_NAMES: Final = 6
_FIXED: Final = "\u00a0"
_SHORT: Final = 14


def text(content: object) -> str:
    """Return text that cannot be markup, without what a browser or a reader could take for more than text."""
    return escape(printable(str(content)), quote=True)


def document(title: str, body: str, footer: str, css: str = "") -> str:
    """Return a whole page; `css` follows the style that all pages share."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n"
        f"<style>\n{_CSS.read_text(encoding='utf-8')}{css}</style>\n</head>\n<body>\n"
        f"{body}<footer>{text(footer)}</footer>\n</body>\n</html>\n"
    )


def wide(inner: str, title: str) -> str:
    """Return what may be wider than the screen: it scrolls alone, by keyboard too."""
    return f'<div class="wide" role="region" aria-label="{text(title)}" tabindex="0">{inner}</div>'


def figure(drawn: Figure) -> str:
    """Return a drawing with its caption and its legend."""
    keys = "".join(f'<li><i class="key {kind}"></i>{text(name)}</li>' for kind, name in drawn.legend)
    legend = f'<ul class="legend">{keys}</ul>' if keys else ""
    caption = f"<figcaption>{text(drawn.caption)}</figcaption>"
    broad = ' class="broad"' if drawn.drawing.width > _COLUMN else ""
    return f"<figure{broad}>{caption}{wide(drawn.drawing.svg, drawn.caption)}{legend}</figure>\n"


def definitions(pairs: Iterable[tuple[str, str]]) -> str:
    """Return titles with their texts."""
    return f"<dl>{''.join(f'<dt>{text(title)}</dt><dd>{text(content)}</dd>' for title, content in pairs)}</dl>"


def status(word: str) -> str:
    """Return a status in its colour."""
    return f'<span class="status {word}">{word}</span>'


def page(report: RunReport) -> str:
    """Return the page: the verdict, what is wrong, the GPUs, the curves, all checks; evidence folded away."""
    title = f"{report.verdict.status}: {report.host.name}, {report.target.name}"
    body = [_findings(report), _gpus(report), _figures(report), _checks(report), _evidence(report)]
    content = f"{_verdict(report)}<main>\n{''.join(body)}</main>\n"
    return document(f"envcheck {title}", content, f"envcheck {report.tool}, {report.schema}")


def _verdict(report: RunReport) -> str:
    counted = [(word, count) for word in _ORDER if (count := report.verdict.counts.get(word))]
    counts = "".join(f'<span class="status {word}">{count} {word}</span>' for word, count in counted)
    host = f"{report.host.name} ({report.host.system} {report.host.kernel} {report.host.arch})"
    ended = f"{report.started} to {report.ended or 'never: it was cut short'}, level {report.plan.level}"
    facts = [
        ("host", host),
        ("ran on", phrases.hardware(report)),
        ("target", f"{report.target.name} ({report.target.chosen})"),
        ("image", phrases.image(report)),
        ("with", phrases.environment(report.environment) or "unknown"),
        ("cell", report.promises.get("cell", "")),
        ("resolved", report.resolution or ""),
        ("when", ended),
        ("evidence", phrases.made_up(report)),
        ("never ran", ", ".join(phrases.unfinished(report))),
    ]
    sentence = f"<h1>{text(report.verdict.sentence)}</h1>"
    shown = definitions((title, value) for title, value in facts if value)
    first = "".join(f"<p>{text(line)}</p>" for line in _first(report))
    head = f'{sentence}<p class="counts">{counts}</p>{first}{shown}'
    return f'<header class="verdict {report.verdict.status}">{head}</header>\n'


def _first(report: RunReport) -> Iterable[str]:
    """Yield what to look at first: the check that decided, and the one GPU that most findings name."""
    why = phrases.conclusion(report).removeprefix(report.verdict.sentence).removeprefix(".").strip()
    if why:
        yield why
    if blamed := gpus.one_blamed_gpu(report):
        yield blamed


def _findings(report: RunReport) -> str:
    groups = [same for same in phrases.alike(report.outcomes) if same[0].status in FINDINGS]
    cards = [_finding(same) for same in sorted(groups, key=lambda same: _ORDER.index(same[0].status))]
    return f"<h2>What is wrong, and what to do</h2>\n{''.join(cards)}" if cards else ""


def _finding(same: list[OutcomeRow]) -> str:
    first = same[0]
    names = ", ".join(outcome.id for outcome in same)
    shown = definitions(phrases.particulars(first))
    return f'<section class="finding {first.status}"><h3>{status(first.status)} {text(names)}</h3>{shown}</section>\n'


def _gpus(report: RunReport) -> str:
    titles, rows = gpus.gpu_table(report)
    if not rows:
        return ""
    head = "".join(f'<th scope="col">{text(title)}</th>' for title in titles)
    body = "".join(f"<tr>{''.join(_cell(cell) for cell in row)}</tr>\n" for row in rows)
    table = f'<table class="gpus"><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>'
    return f"<h2>GPUs</h2>\n{wide(table, 'GPUs')}\n"


def _cell(cell: gpus.TableCell) -> str:
    why = f' title="{text(cell.why)}"' if cell.why else ""
    kind = f' class="{"uuid" if cell.status == "code" else f"status {cell.status}"}"' if cell.status else ""
    return f"<td{kind}{why}>{text(cell.text)}</td>"


def _checks(report: RunReport) -> str:
    groups = sorted(phrases.alike(report.outcomes), key=lambda same: _ORDER.index(same[0].status))
    rows = "".join(_row(same) for same in groups)
    plain = "".join(f'<th scope="col">{title}</th>' for title in ("status", "check", "what was found"))
    numbers = "".join(f'<th scope="col" class="number">{title}</th>' for title in ("value", "limit", "seconds"))
    head = f"<thead><tr>{plain}{numbers}</tr></thead>"
    table = f'<table class="checks">{head}\n<tbody>{rows}</tbody></table>'
    return f"<h2>Checks</h2>\n{wide(table, 'Checks')}\n"


def _row(same: list[OutcomeRow]) -> str:
    first = same[0]
    value = phrases.quantity(first.value, first.unit) if phrases.number(first.value) is not None else ""
    limit = phrases.bound(first, unit=first.limit is not None and first.limit.unit != first.unit) if value else ""
    limit = limit.replace(" ", _FIXED) if len(limit) <= _SHORT else limit  # its sign stays with its number
    timed = first.kind == "env" and first.attempts and first.status != "skip" and len(same) == 1
    seconds = f"{first.seconds:.1f}" if timed else ""
    numbers = "".join(f'<td class="number">{text(shown)}</td>' for shown in (value, limit, seconds))
    soft = ' class="soft"' if first.status == "skip" else ""
    names, summary = _named(same)
    cells = f'<td>{status(first.status)}</td><td class="id">{names}</td><td{soft}>{text(summary)}</td>{numbers}'
    return f"<tr>{cells}</tr>\n"


def _named(same: list[OutcomeRow]) -> tuple[str, str]:
    """Return the checks' names and what was found; of many the names stand in prose."""
    found = same[0].summary + phrases.no_pass(same[0])
    if len(same) <= _NAMES:
        return "<br>".join(text(outcome.id) for outcome in same), found
    return f"{len(same)} checks", f"{found}: {', '.join(outcome.id for outcome in same)}"


def _figures(report: RunReport) -> str:
    drawn = "".join(figure(drawn) for outcome in report.outcomes for drawn in figures(outcome))
    return f'<h2>Measured</h2>\n<div class="figures">{drawn}</div>\n' if drawn else ""


def _evidence(report: RunReport) -> str:
    promises = {check.id: check.promise for check in report.plan.checks}
    checks = "".join(_folded(f"{o.id}: {promises.get(o.id, o.summary)}", _details_of(o)) for o in report.outcomes)
    sections = {
        "the data read from the node": snapshot.to_json(report.snapshot),
        "the environment": report.environment,
        "its promises": report.promises,
        "the plan": msgspec.to_builtins(report.plan),
        "the place in its group": msgspec.to_builtins(report.host.place),
    }
    folded_sections = "".join(_folded(title, value) for title, value in sections.items() if value)
    return f'<div class="evidence"><h2>Evidence</h2>\n{checks}{folded_sections}</div>\n'


def _details_of(outcome: OutcomeRow) -> dict[str, Any]:
    kept = msgspec.to_builtins(outcome)
    return {key: value for key, value in kept.items() if value not in (None, "", [], {}) and key not in ("id", "kind")}


def _folded(title: str, value: Any) -> str:
    content = json.dumps(value, indent=1, ensure_ascii=False)
    return f"<details><summary>{text(title)}</summary><pre>{text(content)}</pre></details>\n"


FORMAT: Final = Format(page, suffix=".html")
