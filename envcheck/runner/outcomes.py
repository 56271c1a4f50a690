"""How an outcome is kept: with its attempts, measurements and last words."""

from __future__ import annotations

from typing import Any, Final

from msgspec import convert, structs

from envcheck.checks import FAIL, PASS, WARN, Outcome
from envcheck.runner.discover import Found
from envcheck.runner.record import Attempt, LimitRow, OutcomeRow, Status, plain
from envcheck.runner.session import IMPORT_TIMEOUT

Event = dict[str, Any]
_LOG_LINES: Final = 20


def ending(event: Event, *, importing: bool) -> str:
    """Say how a worker came to its end, and what it did then."""
    if event["event"] == "end":
        return "the worker ended without a word about it"
    if event["event"] == "silent":
        return "the worker went silent and was ended"
    if importing and event.get("signal") == "SIGALRM":
        return f"importing torch took longer than {IMPORT_TIMEOUT:g} s"
    manner = f"died of {event['signal']}" if "signal" in event else f"exited with code {event['code']}"
    last = str(event.get("log", "")).strip().splitlines()[-1:]
    return f"the worker {manner}{' while importing torch' if importing else ''}{': ' + last[0] if last else ''}"


def row(found: Found, outcome: Outcome, event: Event, before: OutcomeRow | None) -> OutcomeRow:
    """Return an outcome with what it rests on; `before` is what the same check came to when first measured."""
    measured = event["event"] == "done"
    attempt = Attempt(
        status=convert(outcome.status, Status),
        value=plain(outcome.value),
        seconds=event["seconds"] if measured else 0.0,
        body=event["body"] if measured else 0.0,
    )
    if before is not None and outcome.status not in (PASS, WARN, FAIL):
        # A second look that could not look takes nothing away from what the first one saw.
        return structs.replace(before, attempts=[*before.attempts, attempt])
    return OutcomeRow(
        id=found.id,
        kind=found.kind,
        status=attempt.status,
        summary=outcome.summary,
        value=attempt.value,
        unit=outcome.unit,
        limit=_limit(outcome),
        remedy=outcome.remedy,
        details=plain({**outcome.details, **_survivors(event)}),
        planned=found.check.seconds,
        seconds=attempt.seconds,
        attempts=[*(before.attempts if before else []), attempt],
        ranks=plain(event["ranks"]) if measured else [],
        log="" if outcome.status == PASS or not measured else _last_lines(event["logs"]),
        left_out=event["event"] == "left-out",
    )


def _survivors(event: Event) -> dict[str, Any]:
    """Name what no signal could end: it is left, and whoever looks after the node must know."""
    return {"survivors": event["survivors"]} if event.get("survivors") else {}


def _limit(outcome: Outcome) -> LimitRow | None:
    limit = outcome.limit
    if limit is None:
        return None
    return LimitRow(value=plain(limit.value), unit=limit.unit, source=limit.source, kind=limit.kind)


def _last_lines(logs: list[str]) -> str:
    lines = [f"[rank {rank}] {line}" for rank, log in enumerate(logs) for line in log.splitlines()[-_LOG_LINES:]]
    return "\n".join(lines)
