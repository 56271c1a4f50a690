"""From an outcome to its row in a report, and from the rows of several measurements to one. Pure.

Only a speed that fell short is measured a second time, and only such a failure can be taken back by a better
measurement. Wrong data, a crash and everything else stay, whatever later measurements say: the worst counts.
"""

import collections
import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import convert, structs

from envcheck.checks import ERROR, FAIL, PASS, SKIP, WARN, WORST_FIRST, Outcome
from envcheck.runner.planning import CheckModule, Kind
from envcheck.runner.schema import Attempt, ChangeRow, FindingRow, LimitRow, OutcomeRow, Spread, Status
from envcheck.runner.worker import process_limits

Event = dict[str, Any]
# The codes of outcomes that a process made by its end, and no judge.
LOST: Final = ("process.lost", "process.hung", "peer-to-peer.lost")
# The rules that compare rows of one check, with the reasons that reports show. The last one is `envcheck report judge`.
ROW_RULES: Final = {
    "second-measurement": "the first measurement was only slow, so the second one counts",
    "worse-measurement": "the check was measured again, and the worse measurement counts",
    "worst-round": "the check was repeated, and the worst round counts",
    "same-bits": "the results differ in bits from those of earlier rounds",
    "judged-again": "the judges, the limits or the matrix of today differ from those of the report",
}
# A repeated run of days must not grow its report without end.
_MOST, _WITH_EVIDENCE = 100, 8
_OTHER_BITS: Final = (
    "take this GPU out and test it alone (dcgmi diag -r 4); all at once: look for what changed between the rounds"
)
_LINES: Final = 20
_FRAMES: Final = 8
_WIDTH: Final = 1000
_FRAME: Final = re.compile(r'\s*File "')
# How its file begins to run says nothing of the check; an import of torch is a hundred frames of importlib.
_NOISE: Final = re.compile(r'\s*File "([^"]*/envcheck/runner/(?:worker/)?\w+\.py|<frozen importlib\.[^"]*)", line ')
_DUMPED: Final = re.compile(r'\s*File ".*", line \d+ in ')  # a traceback has a comma before "in"


def plain(value: Any) -> Any:
    """Return a measured value as JSON can hold it: what is not finite becomes "nan", "inf" or "-inf", not null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, (list, tuple, set, frozenset)) else str(value)


def fields(outcome: Outcome) -> dict[str, Any]:
    """Return what a row says of an outcome, but for its details and what it rests on."""
    findings = outcome.findings if len(outcome.findings) > 1 else ()
    return {
        **structs.asdict(_finding(outcome)),
        "findings": [_finding(finding) for finding in findings],
        "changes": [ChangeRow(**vars(change)) for change in outcome.changes],
    }


def _finding(outcome: Outcome) -> FindingRow:
    limit = outcome.limit
    # An error that names a limit is told with what lifts it.
    lifted = process_limits.lifted(outcome.summary) if outcome.status == ERROR else ""
    return FindingRow(
        **{name: getattr(outcome, name) for name in ("summary", "unit", "code", "culprit", "remeasure")},
        remedy=lifted or outcome.remedy,
        status=convert(outcome.status, Status),
        value=plain(outcome.value),
        limit=LimitRow(**{**vars(limit), "value": plain(limit.value)}) if limit else None,
    )


def row_of(identity: str, outcome: Outcome, kind: Kind = "env") -> OutcomeRow:
    """Return the row of an outcome that rests on no measurement of its own."""
    return OutcomeRow(id=identity, kind=kind, **fields(outcome), details=plain(outcome.details))


def outcome_row(
    module: CheckModule, outcome: Outcome, event: Event, before: OutcomeRow | None, seconds: float
) -> OutcomeRow:
    """Return an outcome with what it rests on; `before` is the row of its first measurement, `seconds` the plan's."""
    done, alone = event["event"] == "done", row_of(module.id, outcome, module.kind)
    log = last_lines(str(event.get("log", ""))) if outcome.status == ERROR else []
    if done:
        logs = enumerate(event["logs"])
        log = [f"[rank {rank}] {line}" for rank, text in logs if outcome.status != PASS for line in last_lines(text)]
    # What no signal could end is left, and whoever looks after the node must know.
    left = {"survivors": event["survivors"]} if event.get("survivors") else {}
    took, body = (event["seconds"], event["body"]) if done else (0.0, 0.0)
    now = structs.replace(
        alone,
        details={**alone.details, **plain({**left, **event.get("kept", {})})},
        planned=seconds,
        seconds=took,
        attempts=[Attempt(**told(alone), seconds=took, body=body, shown=True)],
        ranks=plain(event["ranks"]) if done else [],
        log="\n".join(log),
        left_out=event["event"] == "left-out",
    )
    return now if before is None else measured_twice(before, now)


def last_lines(log: str, count: int = _LINES) -> list[str]:
    """Return at most `count` lines, of a long one its end; of what faulthandler dumps the head, where it hangs."""
    lines = log.splitlines()
    # Where it went wrong in envcheck itself, its frames are all there is.
    skipped = _NOISE if any(_FRAME.match(line) and not _NOISE.match(line) for line in lines) else None
    # A check's file lies under a directory of this run alone.
    own = (re.sub(r'(File ")[^"]*/(envcheck/checks/)', r"\1\2", line)[-_WIDTH:] for line in _telling(lines, skipped))
    return [*own][-count:]


def _telling(lines: Iterable[str], skipped: re.Pattern[str] | None) -> Iterator[str]:
    """Yield all but skipped frames, with their source, and the outer frames of a thread's dump."""
    noise, frames = False, 0
    for line in lines:
        if _FRAME.match(line):
            noise = skipped is not None and skipped.match(line) is not None
        elif not line[:1].isspace():
            noise = False
        if not noise:
            frames = frames + 1 if _DUMPED.match(line) else 0
            if frames <= _FRAMES:
                yield line


def severity(row: OutcomeRow | Attempt) -> int:
    """Return 0 for a final failure, and more for whatever is better; a failure of speed alone is 1."""
    return int(row.remeasure) if row.status == FAIL else 1 + WORST_FIRST.index(row.status)


def unfinished(row: OutcomeRow) -> bool:
    """Return whether an outcome waits for its second measurement: a speed that fell short once."""
    return row.remeasure and row.status == FAIL and len(row.attempts) == 1 and row.spread is None


def measured_twice(first: OutcomeRow, second: OutcomeRow) -> OutcomeRow:
    """Return one row of a check that was measured a second time; both attempts stay in it.

    The second counts where the first was slow and nothing else, and the second was measured at all. Else the worse
    one counts, and what was found in the other is added to its findings.
    """
    if first.remeasure and second.status in (PASS, WARN, FAIL):
        both = structs.replace(second, attempts=_together(second, first, second))
        return changed("second-measurement", first, both)
    row, other = _by_severity(first, second)
    joined = _worse("worse-measurement", first, second)
    return structs.replace(
        joined,
        summary=f"{row.summary}; measured again: {other.summary}" if other is second else row.summary,
        remeasure=False,
        details={**other.details, **row.details},
        log="\n".join(filter(None, (row.log, other.log))),
    )


def _by_severity(before: OutcomeRow, now: OutcomeRow) -> tuple[OutcomeRow, OutcomeRow]:
    return (now, before) if severity(now) < severity(before) else (before, now)


def _worse(rule: str, before: OutcomeRow, now: OutcomeRow) -> OutcomeRow:
    """Return the worse of two rows, with the attempts and findings of both."""
    row, other = _by_severity(before, now)
    merged = merged_findings(row, other) if other.status not in (PASS, SKIP) else row.findings
    return changed(rule, before, structs.replace(row, attempts=_together(row, before, now), findings=merged))


def changed(rule: str, before: OutcomeRow, after: OutcomeRow) -> OutcomeRow:
    """Return the row after a rule of ROW_RULES, with the change recorded where its status is another than before."""
    if after.status == before.status:
        return after
    change = ChangeRow(rule=rule, before=before.status, after=after.status, reason=ROW_RULES[rule])
    return structs.replace(after, changes=[*after.changes, change])


def combine(rows: Sequence[OutcomeRow]) -> OutcomeRow:
    """Return one row of single attempts: joined within each round, the worst over the rounds."""
    rounds: dict[int, OutcomeRow] = {}
    for row in rows:
        number = row.attempts[0].round if row.attempts else 1
        rounds[number] = measured_twice(rounds[number], row) if number in rounds else row
    return functools.reduce(functools.partial(_worse, "worst-round"), rounds.values())


def merged_findings(*rows: OutcomeRow) -> list[FindingRow]:
    """Return all findings of these rows, worst first; one that comes again in another row is one.

    It is known by its code and culprit, for its numbers differ. A row that has several findings with one code and
    culprit keeps each of them: the first of them is the first of those in another row.
    """
    findings: dict[tuple[Any, ...], FindingRow] = {}
    for row in rows:
        times: collections.Counter[tuple[str, ...]] = collections.Counter()
        for finding in row.findings or [as_finding(row)]:
            if finding.status not in (PASS, SKIP):
                # Checks of a site may give no code.
                unnamed = finding.code in ("", default_code(row.id, finding.status))
                told = (finding.summary,) if unnamed else (finding.code, finding.culprit)
                name = (finding.status, *told)
                times[name] += 1
                findings.setdefault((name, times[name]), finding)
    ordered = sorted(findings.values(), key=lambda finding: WORST_FIRST.index(finding.status))
    return ordered[:_MOST] if len(ordered) > 1 else []


def default_code(check: str, status: str) -> str:
    """Return the code of what a check gave none; it says nothing that its check and status do not say."""
    return f"{check}.{status}"


def as_finding(row: OutcomeRow) -> FindingRow:
    """Return an outcome that is its own only finding as a finding."""
    return FindingRow(**told(row))


def told(row: OutcomeRow | Attempt) -> dict[str, Any]:
    """Return what a row or an attempt says as a finding does, by field."""
    return {name: getattr(row, name) for name in FindingRow.__struct_fields__}


def single(row: OutcomeRow, attempt: Attempt) -> OutcomeRow:
    """Return what one attempt alone came to, as it was kept; `row` is the row that holds it."""
    kept = {**told(attempt), "remedy": attempt.remedy or "run the check again", "seconds": attempt.seconds}
    alone = [structs.replace(attempt, shown=True, ranks=[])]
    return OutcomeRow(id=row.id, kind=row.kind, planned=row.planned, attempts=alone, ranks=attempt.ranks, **kept)


def measured(row: OutcomeRow) -> bool:
    """Return whether a judge came to this outcome by measurements that can be judged again."""
    if not row.ranks or row.code in LOST:
        return False
    # A pass without measurements cannot be: the judge says so.
    return row.status == PASS or all(isinstance(entry, dict) for entry in row.ranks)


def _together(counted_row: OutcomeRow, *rows: OutcomeRow) -> list[Attempt]:
    """Return the attempts of all rows; the one that counts is marked, and each other keeps what it was judged by."""
    attempts: list[Attempt] = []
    for row in rows:
        for attempt in row.attempts:
            if row is not counted_row and attempt.shown:
                room = sum(bool(a.ranks) for a in attempts) < _WITH_EVIDENCE
                evidence = row.ranks if room and row.status not in (PASS, SKIP) and measured(row) else []
                attempts.append(structs.replace(attempt, shown=False, ranks=evidence))
            else:
                attempts.append(attempt)
    if len(attempts) <= _MOST:
        return attempts
    telling = [a for a in attempts if a.shown or a.status not in (PASS, SKIP)]
    return [a for number, a in enumerate(telling) if a.shown or number < _MOST - 1]


def fold(before: OutcomeRow | None, now: OutcomeRow) -> OutcomeRow:
    """Return one row for all rounds so far: that of the worst of them, with the spread, attempts and findings of all.

    A check that leaves `bits` in its details, by rank, promises the same ones in every round.
    """
    import statistics  # noqa: PLC0415 (it takes long to import, and only a repeated run needs it)

    now = _same_bits(before, now)
    spread = before.spread if before else None
    seen = dict(spread.statuses) if spread else {}
    seen[now.status] = seen.get(now.status, 0) + 1
    number = sum(seen.values())
    now = structs.replace(now, attempts=[structs.replace(attempt, round=number) for attempt in now.attempts])
    worse = before is None or severity(now) < severity(before)
    number_told = isinstance(now.value, (int, float)) and not isinstance(now.value, bool)
    values = [*(spread.values if spread else []), *([now.value] if number_told else [])]
    folded = Spread(
        rounds=number,
        statuses=seen,
        told_in=number if worse or spread is None else spread.told_in,
        values=values,
        smallest=min(values, default=None),
        median=statistics.median(values) if values else None,
        largest=max(values, default=None),
    )
    return structs.replace(now if before is None else _worse("worst-round", before, now), spread=folded)


def _same_bits(before: OutcomeRow | None, now: OutcomeRow) -> OutcomeRow:
    """Return this round's row, failed where somebody's bits are not those of the rounds before."""
    old, new = (row.details.get("bits") if row else None for row in (before, now))
    if before is None or not isinstance(old, dict) or not isinstance(new, dict):
        return now
    others = [entry for entry in now.ranks if old.get(str(entry.get("rank"))) != new.get(str(entry.get("rank")))]
    if not others:
        return now
    named = ", ".join(f"rank {entry.get('rank')} on {entry.get('device')}" for entry in others)
    wrong: dict[str, Any] = {
        "status": FAIL,
        "summary": f"{named} gave other bits than in the rounds before",
        "remedy": _OTHER_BITS,
        "code": "data.not-reproducible",
        "culprit": named,
        "remeasure": False,
    }
    failed = changed("same-bits", now, structs.replace(now, **wrong, findings=[]))
    digests = [[*a.get("digests", []), *b.get("digests", [])] for a, b in zip(before.ranks, now.ranks, strict=False)]
    return structs.replace(
        failed,
        findings=merged_findings(failed, now) if now.status != PASS else [],
        attempts=[*now.attempts[:-1], *(structs.replace(a, **wrong) for a in now.attempts[-1:])],
        details={**now.details, "bits": old, "other_bits": new},
        # With the repeats of both rounds: whoever judges them again sees what was seen.
        ranks=[
            {**rank, "digests": of_both, "repeats": len(of_both)}
            for rank, of_both in zip(now.ranks, digests, strict=False)
        ],
    )
