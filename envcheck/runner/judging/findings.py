"""The findings of one outcome: held to be sound before anybody relies on them, and changed one by one. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from envcheck.checks import ERROR, FAIL, NOT_FINITE, PASS, WARN, WORST_FIRST, Outcome, undecided, worst
from envcheck.runner import attempts


def each(outcome: Outcome, change: Callable[[Outcome], Outcome]) -> Outcome:
    """Return the outcome with every finding changed; its status is that of the worst after that."""
    before = outcome.findings or (outcome,)
    after = tuple(change(finding) for finding in before)
    if after == before:
        return outcome
    if not outcome.findings:
        return after[0]
    combined = worst(after, otherwise=outcome)
    return dataclasses.replace(combined, details={**combined.details, **outcome.details})


def named(check: str, outcome: Outcome) -> Outcome:
    """Return the outcome with `<check>.<status>` for each code that its check left out."""
    if all(finding.code or finding.status == PASS for finding in (outcome, *outcome.findings)):
        return outcome
    parts = tuple(named(check, finding) for finding in outcome.findings)
    code = "" if outcome.status == PASS else outcome.code or attempts.default_code(check, outcome.status)
    return dataclasses.replace(outcome, code=code, findings=parts)


def sound(outcome: Any) -> Outcome:
    """Return what a judge returned, or an error where it contradicts itself; no finding is lost by that."""
    if not isinstance(outcome, Outcome) or not isinstance(outcome.findings, tuple):
        return _bug(f"its judge returned {type(outcome).__name__}")
    if not outcome.findings:
        return _sound(outcome)
    own = _sound(dataclasses.replace(outcome, findings=()))
    parts = [_sound(finding) for finding in outcome.findings]
    intact = own.status == outcome.status and all(a is b for a, b in zip(parts, outcome.findings, strict=True))
    if intact and own.status == min((part.status for part in parts), key=WORST_FIRST.index):
        return outcome
    if intact:
        parts.append(_bug(f"it is a {own.status}, and its findings are not: {own.summary}"))
    else:
        parts.append(own)
    return worst(parts, otherwise=own)


def _sound(finding: Any) -> Outcome:
    if not isinstance(finding, Outcome) or finding.status not in WORST_FIRST or finding.findings:
        return _bug(f"a finding is {type(finding).__name__} {str(getattr(finding, 'status', ''))[:20]!r}")
    bound = finding.limit.value if finding.limit else None
    if not _finite(finding.value) or not _finite(bound):
        summary = f"measured {finding.value} against {bound}: {finding.summary}"
        unknown = dataclasses.replace(finding, value=None, limit=None, remeasure=False)
        return dataclasses.replace(unknown, status=ERROR, summary=summary, code=NOT_FINITE)
    if finding.status in (FAIL, WARN) and not finding.remedy:
        return _bug(f"{finding.status} without a remedy: {finding.summary}")
    if finding.remeasure and finding.status != FAIL:
        return _bug(f"a {finding.status} that is too slow: {finding.summary}")
    return finding


def _bug(problem: str) -> Outcome:
    return undecided(f"bug in this check: {problem}", fix="report it, with this report", code="envcheck.bug")


def _finite(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_finite(v) for v in value)
    return not isinstance(value, float) or math.isfinite(value)
