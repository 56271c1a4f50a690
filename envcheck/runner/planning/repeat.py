"""A plan done more than once: which checks are still to be done, and one row of each check's many."""

from __future__ import annotations

from typing import Any, Final

from msgspec import structs

from envcheck.checks import FAIL, PASS
from envcheck.runner import attempts
from envcheck.runner.schema import OutcomeRow, Plan, PlannedCheck, Spread

_OTHER_BITS: Final = (
    "take this GPU out and test it alone (dcgmi diag -r 4); all at once: look for what changed between the rounds"
)


def rounds(row: OutcomeRow | None) -> int:
    """Return how often a check has come to an outcome."""
    if row is None:
        return 0
    return row.spread.rounds if row.spread else 1


def to_do(plan: Plan, done: dict[str, OutcomeRow], elapsed: float) -> list[PlannedCheck]:
    """Return the checks of the round to come: those done least often. None when the run is over.

    A round that has begun is finished, so every check is done equally often, and at least once.
    """
    times = {check.id: rounds(done.get(check.id)) for check in plan.checks}
    least, most = min(times.values()), max(times.values())
    more = least < plan.repeat or (plan.duration is not None and elapsed < plan.duration)
    return [check for check in plan.checks if times[check.id] == least] if more or least < most else []


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
    now = attempts.in_round(now, number)
    worse = before is None or attempts.severity(now) < attempts.severity(before)
    values = [*(spread.values if spread else []), *_numbers(now)]
    folded = Spread(
        rounds=number,
        statuses=seen,
        told_in=number if worse or spread is None else spread.told_in,
        values=values,
        smallest=min(values, default=None),
        median=statistics.median(values) if values else None,
        largest=max(values, default=None),
    )
    return structs.replace(now if before is None else attempts.over_rounds(before, now), spread=folded)


def _same_bits(before: OutcomeRow | None, now: OutcomeRow) -> OutcomeRow:
    """Return this round's row, failed where somebody's bits are not those of the rounds before."""
    old, new = (row.details.get("bits") if row else None for row in (before, now))
    if before is None or not isinstance(old, dict) or not isinstance(new, dict):
        return now
    others = [entry for entry in now.ranks if _bits(old, entry) != _bits(new, entry)]
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
    failed = attempts.changed("same-bits", now, structs.replace(now, **wrong, findings=[]))
    return structs.replace(
        failed,
        findings=attempts.findings(failed, now) if now.status != PASS else [],
        attempts=[*now.attempts[:-1], *(structs.replace(a, **wrong) for a in now.attempts[-1:])],
        details={**now.details, "bits": old, "other_bits": new},
        ranks=[_both(*pair) for pair in zip(before.ranks, now.ranks, strict=False)],
    )


def _bits(bits: dict[str, Any], entry: dict[str, Any]) -> Any:
    return bits.get(str(entry.get("rank")))


def _both(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Return one rank's measurements with the repeats of both rounds: whoever judges them again sees what was seen."""
    digests = [*before.get("digests", []), *now.get("digests", [])]
    return {**now, "digests": digests, "repeats": len(digests)}


def _numbers(row: OutcomeRow) -> list[float]:
    number = isinstance(row.value, (int, float)) and not isinstance(row.value, bool)
    return [row.value] if number else []
