"""What a row of a report says of an outcome. Whoever judges an old report needs nothing of how ranks are started."""

from __future__ import annotations

from typing import Any, Final

from msgspec import convert

from envcheck.checks import Outcome
from envcheck.runner.schema import ChangeRow, FindingRow, LimitRow, Status, plain

# What an attempt keeps of its outcome.
ATTEMPT: Final = ("status", "value", "unit", "summary", "code", "culprit", "remedy")


def fields(outcome: Outcome) -> dict[str, Any]:
    """Return what a row says of an outcome, but for its details and what it rests on."""
    findings = outcome.findings if len(outcome.findings) > 1 else ()
    return {
        **_described(outcome),
        "findings": [FindingRow(**_described(finding)) for finding in findings],
        "changes": [ChangeRow(**change._asdict()) for change in outcome.changes],
    }


def _described(outcome: Outcome) -> dict[str, Any]:
    return {
        "status": convert(outcome.status, Status),
        "summary": outcome.summary,
        "value": plain(outcome.value),
        "unit": outcome.unit,
        "limit": limit_row(outcome),
        "remedy": outcome.remedy,
        "code": outcome.code,
        "culprit": outcome.culprit,
        "remeasure": outcome.remeasure,
    }


def limit_row(outcome: Outcome) -> LimitRow | None:
    """Return the bound an outcome was judged by, as it is kept."""
    limit = outcome.limit
    if limit is None:
        return None
    return LimitRow(value=plain(limit.value), unit=limit.unit, source=limit.source, kind=limit.kind)
