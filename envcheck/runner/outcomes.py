"""How an outcome is kept: with its attempts, measurements and last words."""

from __future__ import annotations

from typing import Any, Final

from msgspec import convert, structs

from envcheck.checks import ERROR, FAIL, PASS, WARN, Outcome, undecided
from envcheck.runner import peers
from envcheck.runner.discover import Found
from envcheck.runner.logs import last_lines
from envcheck.runner.record import Attempt, LimitRow, OutcomeRow, Status, plain
from envcheck.runner.session import IMPORT_TIMEOUT
from envcheck.runner.worker_group import HUNG

Event = dict[str, Any]
BY_HAND: Final = "import torch with that Python by hand, and see what it does"
_NO_TORCH: Final = "ModuleNotFoundError: No module named 'torch'"
_SEE_LOG: Final = "see the log in the report"


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


def lost(error: dict[str, Any], torch: str | None) -> Outcome:
    """Return the outcome of a check of which a rank ended badly, or not at all; `torch` is why it is not imported."""
    hung = error["text"].startswith(HUNG)
    # What half of an import left behind makes the next one raise something else.
    if torch is not None and (error["text"] == torch or (torch != _NO_TORCH and not hung)):
        return _without_torch(torch)
    fix = "the log says where it hung; if this machine is only slow, give a longer --timeout" if hung else _SEE_LOG
    return undecided(f"rank {error['rank']} {error['text']}", fix=fix, rank=error["rank"])


def _without_torch(error: str) -> Outcome:
    fix = "give --python an interpreter that has torch, or --image an image; `envcheck build` makes both"
    if error != _NO_TORCH:
        raised = error.partition(":")[0]
        fix = f"torch is there but broken ({raised}): install it again, or give --python another; the JSON has the log"
    return undecided(f"torch cannot be imported: {error}", fix=fix, unimportable="torch")


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
        limit=limit_row(outcome),
        remedy=outcome.remedy,
        details=plain({**outcome.details, **_survivors(event), **peers.kept(event)}),
        planned=found.check.seconds,
        seconds=attempt.seconds,
        attempts=[*(before.attempts if before else []), attempt],
        ranks=plain(event["ranks"]) if measured else [],
        log="" if outcome.status == PASS else _last_words(event, lost=outcome.status == ERROR),
        left_out=event["event"] == "left-out",
    )


def _survivors(event: Event) -> dict[str, Any]:
    """Name what no signal could end: it is left, and whoever looks after the node must know."""
    return {"survivors": event["survivors"]} if event.get("survivors") else {}


def limit_row(outcome: Outcome) -> LimitRow | None:
    """Return the bound an outcome was judged by, as it is kept."""
    limit = outcome.limit
    if limit is None:
        return None
    return LimitRow(value=plain(limit.value), unit=limit.unit, source=limit.source, kind=limit.kind)


def _last_words(event: Event, *, lost: bool) -> str:
    """Return what each rank said last; of a check that was lost with the worker, what the worker did."""
    if event["event"] == "done":
        return "\n".join(f"[rank {rank}] {line}" for rank, log in enumerate(event["logs"]) for line in last_lines(log))
    return "\n".join(last_lines(str(event.get("log", "")))) if lost else ""
