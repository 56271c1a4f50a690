"""A report as one HTML page that needs nothing else: no network, no script, no font. The parts of all our pages."""

import json
import re
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any, Final

import msgspec

from envcheck.counting import printable
from envcheck.node.snapshot import Gpu
from envcheck.reports import phrases
from envcheck.reports.formats import Format
from envcheck.reports.measurements import Figure, figures
from envcheck.reports.model import RunReport
from envcheck.runner.schema import OutcomeRow

_CSS: Final = Path(__file__).with_name("page.css")
# Nothing may be fetched, whatever a log smuggles in.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_NAMES: Final = 6
# A value or limit of so many characters is not wrapped.
_SHORT: Final = 16
# The style cuts a digest or a GPU's UUID short; one click selects all of it.
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}|GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# More lines of a log than this are folded away.
_LOG: Final = 4
# Signals by column; a second one stands behind a slash: what is, of what could be.
_COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "memory / MiB": ("memory_used", "memory_total"),
    "power / W": ("power_draw", "power_limit"),
    "°C": ("temperature",),
    "SM / MHz": ("clock_sm", "clock_sm_max"),
    "PCIe gen": ("pcie_gen", "pcie_gen_max"),
    "lanes": ("pcie_width", "pcie_width_max"),
    "NVLinks": ("nvlinks_active",),
    "ECC": ("ecc_mode",),
    "MIG": ("mig_mode",),
}


def text(content: object) -> str:
    """Return text that cannot be markup, without what a browser or a reader could take for more than text."""
    return escape(printable(str(content)), quote=True)


def prose(content: object) -> str:
    """Return text whose digests are shown short."""
    return _DIGEST.sub(lambda found: _short(found[0]), text(content))


def _short(safe: str) -> str:
    return f'<span class="digest" title="{safe}">{safe}</span>'


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
    broad = ' class="broad"' if drawn.drawing.startswith("<table") else ""
    return f"<figure{broad}>{caption}{wide(drawn.drawing, drawn.caption)}{legend}</figure>\n"


def definitions(pairs: Iterable[tuple[str, str]]) -> str:
    """Return titles with their texts."""
    rows = (f"<dt>{text(title)}</dt><dd>{_content(title, content)}</dd>" for title, content in pairs)
    return f"<dl>{''.join(rows)}</dl>"


def _content(title: str, content: str) -> str:
    lines = content.splitlines()
    if title != "log" or len(lines) <= _LOG:
        return prose(content)
    last, count = text(phrases.last_words(content)), len(lines)
    return f"{last}<details><summary>{count} lines</summary><pre>{text(content)}</pre></details>"


def status(word: str) -> str:
    """Return a status in its colour."""
    return f'<span class="status {word}">{word}</span>'


def page(report: RunReport) -> str:
    """Return the page: the verdict, problems, checks, GPUs, what was measured; evidence folded away."""
    title = f"{report.verdict.status}: {report.host.name}, {report.target.name}"
    cards = "".join(map(_finding, phrases.by_status(report.outcomes, phrases.FINDINGS)))
    wrong = f"<h2>What is wrong, and what to do</h2>\n{cards}" if cards else ""
    body = [wrong, _checks(report), _gpus(report), _figures(report), _evidence(report)]
    content = f"{_verdict(report)}<main>\n{''.join(body)}</main>\n"
    return document(f"envcheck {title}", content, f"envcheck {report.tool}, {report.schema}")


def _verdict(report: RunReport) -> str:
    counted = [(word, report.verdict.counts.get(word)) for word in phrases.WORST_FIRST]
    counts = "".join(f'<span class="status {word}">{count} {word}</span>' for word, count in counted if count)
    first = "".join(f"<p>{prose(line)}</p>" for line in phrases.first(report))
    return (
        f'<header class="verdict {report.verdict.status}"><h1>{text(report.verdict.sentence)}</h1>'
        f'<p class="counts">{counts}</p>{first}{definitions(phrases.facts(report))}</header>\n'
    )


def _finding(same: list[OutcomeRow]) -> str:
    first = same[0]
    names = ", ".join(outcome.id for outcome in same)
    shown = definitions(phrases.particulars(first))
    return f'<section class="finding {first.status}"><h3>{status(first.status)} {text(names)}</h3>{shown}</section>\n'


def _gpus(report: RunReport) -> str:
    """Return the table of GPUs; one that only torch or only NVML sees has its row too."""
    gpus = {gpu.uuid: gpu for gpu in report.snapshot.gpus}
    shown = {title: of for title, of in _COLUMNS.items() if any(of[0] in gpu.signals for gpu in gpus.values())}
    devices = phrases.devices(report.environment)
    visible = {str(device.get("uuid")): str(device.get("name") or "?") for device in devices}
    blamed, rows = phrases.culprits(report), []
    for number, uuid in enumerate(phrases.uuids(report)):
        gpu = gpus.get(uuid, Gpu(uuid))
        model = str(gpu.signal("name").value or visible.get(uuid, "?"))
        first = f"<td>{text(phrases.gpu_index(gpu, number))}</td>{_blame(blamed[uuid])}<td>{text(model)}</td>"
        read = "".join(_read(gpu, names) for names in shown.values())
        rows.append(f'<tr>{first}<td class="uuid">{_short(text(uuid))}</td>{read}</tr>\n')
    if not rows:
        return ""
    head = "".join(f'<th scope="col">{text(title)}</th>' for title in ("GPU", "findings", "model", "UUID", *shown))
    table = f'<table class="gpus"><thead><tr>{head}</tr></thead>\n<tbody>{"".join(rows)}</tbody></table>'
    return f"<h2>GPUs</h2>\n{wide(table, 'GPUs')}\n"


def _blame(outcomes: list[OutcomeRow]) -> str:
    if not outcomes:
        return "<td>none</td>"
    worst = min((o.status for o in outcomes), key=phrases.WORST_FIRST.index)
    return f'<td class="status {worst}">{text(", ".join(o.id for o in outcomes))}</td>'


def _read(gpu: Gpu, names: tuple[str, ...]) -> str:
    first = gpu.signal(names[0])
    if first.value is None:
        why = f' title="{text(first.reason)}"' if first.reason else ""
        return f"<td{why}>?</td>"
    shown = []
    for signal in filter(lambda signal: signal.value is not None, map(gpu.signal, names)):
        is_size = signal.unit == "B" and phrases.number(signal.value) is not None
        shown.append(f"{signal.value / 2**20:,.0f}" if is_size else phrases.quantity(signal.value, ""))
    return f"<td>{text(' / '.join(dict.fromkeys(shown)))}</td>"


def _checks(report: RunReport) -> str:
    rows = "".join(_row(same) for same in phrases.by_status(report.outcomes))
    plain = "".join(f'<th scope="col">{title}</th>' for title in ("status", "check", "what was found"))
    numbers = "".join(f'<th scope="col" class="number">{title}</th>' for title in ("value", "limit", "took"))
    head = f"<thead><tr>{plain}{numbers}</tr></thead>"
    table = f'<table class="checks">{head}\n<tbody>{rows}</tbody></table>'
    return f"<h2>Checks</h2>\n{wide(table, 'Checks')}\n"


def _row(same: list[OutcomeRow]) -> str:
    first = same[0]
    value = phrases.quantity(first.value, first.unit) if phrases.number(first.value) is not None else ""
    # The limit's unit is left out where it is the one beside the value; µs beside a limit in s are not.
    alike = first.limit is not None and first.limit.unit == first.unit and value.endswith(f" {first.unit}".rstrip())
    limit = phrases.bound(first, unit=not alike) if value else ""
    timed = first.kind == "env" and first.attempts and first.status != "skip" and len(same) == 1
    took = phrases.took(first.seconds) if timed else ""
    numbers = "".join(
        f'<td class="number{" short" if len(shown) <= _SHORT else ""}">{text(shown)}</td>'
        for shown in (value, limit, took)
    )
    soft = ' class="soft"' if first.status == "skip" else ""
    names, found = "<br>".join(text(outcome.id) for outcome in same), first.summary + phrases.no_pass(first)
    if len(same) > _NAMES:
        names, found = f"{len(same)} checks", f"{found}: {', '.join(outcome.id for outcome in same)}"
    cells = f'<td>{status(first.status)}</td><td class="id">{names}</td><td{soft}>{prose(found)}</td>{numbers}'
    return f"<tr>{cells}</tr>\n"


def _figures(report: RunReport) -> str:
    """Return what was judged, then, folded away, what was only reported."""
    judged, reported = (
        "".join(
            figure(drawn)
            for outcome in report.outcomes
            if (outcome.limit is not None and phrases.number(outcome.value) is not None) is is_so
            for drawn in figures(outcome)
        )
        for is_so in (True, False)
    )
    shown = f'<div class="figures">{judged}</div>\n' if judged else ""
    if reported:
        inner = f'<div class="figures">{reported}</div>'
        shown += f"<details><summary>measured, and not judged</summary>{inner}</details>\n"
    return f"<h2>Measured</h2>\n{shown}" if shown else ""


def _evidence(report: RunReport) -> str:
    promises = {check.id: check.promise for check in report.plan.checks}
    folded = []
    for outcome in report.outcomes:
        kept = msgspec.to_builtins(outcome)
        shown = {key: kept[key] for key in kept if kept[key] not in (None, "", [], {}) and key not in ("id", "kind")}
        folded.append(_folded(f"{outcome.id}: {promises.get(outcome.id, outcome.summary)}", shown))
    node = msgspec.to_builtins(report.snapshot)
    for part in (node, *node["gpus"]):
        signals = part["signals"].items()
        part["signals"] = {name: {k: v for k, v in signal.items() if v not in (None, "")} for name, signal in signals}
    sections = {
        "the data read from the node": node,
        "the environment": report.environment,
        "its promises": report.promises,
        "the plan": msgspec.to_builtins(report.plan),
        "the place in its group": msgspec.to_builtins(report.host.place),
    }
    folded += [_folded(title, value) for title, value in sections.items() if value]
    return f'<div class="evidence"><h2>Evidence</h2>\n{"".join(folded)}</div>\n'


def _folded(title: str, value: Any) -> str:
    content = json.dumps(value, indent=1, ensure_ascii=False)
    return f"<details><summary>{text(title)}</summary><pre>{text(content)}</pre></details>\n"


FORMAT: Final = Format(page, suffix=".html")
