"""How an outcome is kept in a report: with its attempts, its measurements and what its processes said last."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from msgspec import convert

from envcheck.checks import ERROR, PASS, Outcome, undecided
from envcheck.runner import attempts, judging
from envcheck.runner.planning import CheckModule
from envcheck.runner.schema import Attempt, ChangeRow, FindingRow, LimitRow, OutcomeRow, Status, plain
from envcheck.runner.worker import process_limits
from envcheck.runner.worker.group_ending import HUNG
from envcheck.runner.worker_session import IMPORT_TIMEOUT

# What an attempt keeps of its outcome.
ATTEMPT: Final = ("status", "value", "unit", "summary", "code", "culprit", "remedy")
Event = dict[str, Any]
_BY_HAND: Final = "import torch with that Python by hand, and see what it does"
_NO_TORCH: Final = "ModuleNotFoundError: No module named 'torch'"
_SEE_LOG: Final = "see the log in the report"
_LINES: Final = 20
_FRAMES: Final = 8
_WIDTH: Final = 1000
_FRAME: Final = re.compile(r'\s*File "')
# How its file begins to run says nothing of the check; an import of torch is a hundred frames of importlib.
_NOISE: Final = re.compile(r'\s*File "([^"]*/envcheck/runner/(?:worker/)?\w+\.py|<frozen importlib\.[^"]*)", line ')
_DUMPED: Final = re.compile(r'\s*File ".*", line \d+ in ')  # a traceback has a comma before "in"
# A check's file lies under a directory of this run alone.
_STAGED: Final = re.compile(r'(File ")[^"]*/(envcheck/checks/)')


def fields(outcome: Outcome) -> dict[str, Any]:
    """Return what a row says of an outcome, but for its details and what it rests on."""
    findings = outcome.findings if len(outcome.findings) > 1 else ()
    return {
        **_described(outcome),
        "findings": [FindingRow(**_described(finding)) for finding in findings],
        "changes": [ChangeRow(**change._asdict()) for change in outcome.changes],
    }


def _described(outcome: Outcome) -> dict[str, Any]:
    limit = outcome.limit
    return {
        "status": convert(outcome.status, Status),
        "summary": outcome.summary,
        "value": plain(outcome.value),
        "unit": outcome.unit,
        "limit": limit and LimitRow(value=plain(limit.value), unit=limit.unit, source=limit.source, kind=limit.kind),
        "remedy": outcome.remedy,
        "code": outcome.code,
        "culprit": outcome.culprit,
        "remeasure": outcome.remeasure,
    }


def ending(event: Event, *, importing: bool, own_limits: bool) -> str:
    """Say how a worker came to its end, and what it did then; `own_limits`: under the limits of this process."""
    if event["event"] == "end":
        return str(event.get("why", "the worker ended without a message"))
    if event["event"] == "silent":
        if "unreadable" in event:
            return f"the worker's results cannot be read: {event['unreadable']}"
        return "the worker stopped answering and was ended"
    if importing and event.get("signal") == "SIGALRM":
        text = f"importing torch took longer than {IMPORT_TIMEOUT:g} s"
        return process_limits.explained(text) if own_limits else text
    manner = f"died of {event['signal']}" if "signal" in event else f"exited with code {event['code']}"
    log = str(event.get("log", ""))
    last = process_limits.telling_line(log) if own_limits else next(reversed(log.strip().splitlines()), "")
    if event.get("unwritable"):
        last = f"its directory for temporary files takes nothing more: {event['unwritable']}"
    text = f"the worker {manner}{' while importing torch' if importing else ''}{': ' if last else ''}{last}"
    return process_limits.explained(text) if own_limits else text


def ending_fix(event: Event, *, importing: bool) -> str:
    """Say what to do about a worker that came to its end."""
    if event.get("unwritable"):
        return "make room there, or set TMPDIR to a directory that has some"
    return _BY_HAND if importing else "see the log, and try `--only` with one check"


def lost_rank_outcome(error: dict[str, Any], torch: str | None) -> Outcome:
    """Return the outcome of a check of which a rank ended badly, or not at all; `torch` is why it is not imported."""
    hung = error["text"].startswith(HUNG)
    # What half of an import left behind makes the next one raise something else.
    if torch is not None and (error["text"] == torch or (torch != _NO_TORCH and not hung)):
        return _without_torch(torch)
    fix = "the log says where it hung; if this machine is only slow, give a longer --timeout" if hung else _SEE_LOG
    named = {"rank": error["rank"], "culprit": f"rank {error['rank']}"}
    code = "process.hung" if hung else "process.lost"
    return undecided(f"rank {error['rank']} {error['text']}", fix=fix, code=code, **named)


def _without_torch(error: str) -> Outcome:
    fix = "give --python an interpreter that has torch, or --image an image; `envcheck build` makes both"
    if error != _NO_TORCH:
        raised = error.partition(":")[0]
        fix = f"torch is there but broken ({raised}): install it again, or give --python another; the JSON has the log"
    return undecided(f"torch cannot be imported: {error}", fix=fix, unimportable="torch", code="torch.import")


def outcome_row(
    module: CheckModule, outcome: Outcome, event: Event, before: OutcomeRow | None, seconds: float = 0.0
) -> OutcomeRow:
    """Return an outcome with what it rests on; `before` is what the same check came to when first measured.

    `seconds` are those that were planned for it.
    """
    measured = event["event"] == "done"
    described = fields(outcome)
    # What no signal could end is left, and whoever looks after the node must know.
    left = {"survivors": event["survivors"]} if event.get("survivors") else {}
    attempt = Attempt(
        **{name: described[name] for name in ATTEMPT},
        remeasure=outcome.remeasure,
        seconds=event["seconds"] if measured else 0.0,
        body=event["body"] if measured else 0.0,
        shown=True,
    )
    now = OutcomeRow(
        id=module.id,
        kind=module.kind,
        **described,
        details=plain({**outcome.details, **left, **judging.p2p_kept(event)}),
        planned=seconds,
        seconds=attempt.seconds,
        attempts=[attempt],
        ranks=plain(event["ranks"]) if measured else [],
        log="" if outcome.status == PASS else _last_words(event, lost=outcome.status == ERROR),
        left_out=event["event"] == "left-out",
    )
    return now if before is None else attempts.join(before, now)


def _last_words(event: Event, *, lost: bool) -> str:
    """Return what each rank said last; of a check that was lost with the worker, what the worker did."""
    if event["event"] == "done":
        return "\n".join(f"[rank {rank}] {line}" for rank, log in enumerate(event["logs"]) for line in last_lines(log))
    return "\n".join(last_lines(str(event.get("log", "")))) if lost else ""


def last_lines(log: str, count: int = _LINES) -> list[str]:
    """Return at most `count` lines, of a long one its end.

    What faulthandler dumps begins at the hang, so its far end is cut, not its head.
    """
    lines = log.splitlines()
    own = list(_telling(lines))
    if not any(map(_FRAME.match, own)):
        own = lines  # it went wrong in envcheck itself: its frames are all there is
    return [_STAGED.sub(r"\1\2", line)[-_WIDTH:] for line in _innermost(own)][-count:]


def _telling(lines: Iterable[str]) -> Iterator[str]:
    """Yield all but the frames of noise; a frame's source, and the dots of a dump cut short, go with it."""
    noise = False
    for line in lines:
        if _FRAME.match(line):
            noise = _NOISE.match(line) is not None
        elif not line[:1].isspace():
            noise = False
        if not noise:
            yield line


def _innermost(lines: Iterable[str]) -> Iterator[str]:
    frames = 0  # so far, of one thread's dump
    for line in lines:
        frames = frames + 1 if _DUMPED.match(line) else 0
        if frames <= _FRAMES:
            yield line
