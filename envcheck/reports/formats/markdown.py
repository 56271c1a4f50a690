"""A report as Markdown for a CI job's summary: the verdict, what is wrong, and a table of all checks."""

import re
from typing import Final

from envcheck.counting import printable
from envcheck.reports import phrases
from envcheck.reports.formats import Format
from envcheck.reports.model import RunReport
from envcheck.runner.schema import OutcomeRow

_SIGNS: Final = {"pass": "✅", "warn": "⚠️", "fail": "❌", "skip": "⏭️", "error": "💥"}
# What GitHub's Markdown or HTML would take for its own inside a line.
_SPECIAL: Final = re.compile(r"([\\`*_\[\]<>#|~$&])")
# GitHub drops a summary of more than 1 MiB whole.
_MOST: Final = 900_000


def markdown(report: RunReport) -> str:
    """Return the summary, below GitHub's limit of 1 MiB a step whatever the report holds."""
    findings = map(_finding, phrases.by_status(report.outcomes, phrases.FINDINGS))
    parts = [_head(report), *findings, _table(report)]
    text = "\n".join(parts)
    if len(text.encode()) <= _MOST:
        return text
    return text.encode()[:_MOST].decode(errors="ignore").rpartition("\n")[0] + "\n\n(cut here: see the report itself)\n"


def _head(report: RunReport) -> str:
    lines = [f"{_text(line)}\n" for line in phrases.first(report)]
    lines += [f"- {title}: {_text(text)}" for title, text in phrases.facts(report)]
    return "\n".join([f"## {_SIGNS[report.verdict.status]} {_text(report.verdict.sentence)}", "", *lines, ""])


def _finding(same: list[OutcomeRow]) -> str:
    first, told = same[0], dict(phrases.particulars(same[0]))
    names = ", ".join(_text(outcome.id) for outcome in same)
    lines = [f"- {title}: {_text(text)}" for title, text in phrases.particulars(first) if title != "log"]
    # A log stands indented: nothing in it can end that.
    log = ["", *(f"      {line}" for line in printable(told["log"]).splitlines())] if "log" in told else []
    return "\n".join([f"### {_SIGNS[first.status]} {first.status}: {names}", "", *lines, *log, ""])


def _table(report: RunReport) -> str:
    rows = ["| | check | what was found | value | limit |", "|---|---|---|---|---|"]
    for same in phrases.by_status(report.outcomes):
        first = same[0]
        value = phrases.quantity(first.value, first.unit) if phrases.number(first.value) is not None else ""
        names = "<br>".join(_text(outcome.id) for outcome in same)
        cells = (first.summary + phrases.no_pass(first), value, phrases.bound(first) if value else "")
        rows.append(f"| {_SIGNS[first.status]} {first.status} | {names} | {' | '.join(map(_text, cells))} |")
    return "\n".join([*rows, ""])


def _text(text: str) -> str:
    plain = " ".join(printable(str(text)).split())
    return _SPECIAL.sub(r"\\\1", plain)


FORMAT: Final = Format(markdown, suffix=".md", appends=True)
