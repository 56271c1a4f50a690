"""A plan done more than once: which checks are still to be done, and one row of each check's many."""

from __future__ import annotations

import statistics
from typing import Final

from msgspec import structs

from envcheck.checks import ERROR, FAIL, PASS, SKIP, WARN
from envcheck.runner.record import OutcomeRow, Plan, Planned, Spread

# Whatever is no pass wins over one, and what was seen to be wrong over what could not be seen.
_WORST_FIRST: Final = (FAIL, ERROR, WARN, SKIP, PASS)


def rounds(row: OutcomeRow | None) -> int:
    """Return how often a check has come to an outcome."""
    if row is None:
        return 0
    return row.spread.rounds if row.spread else 1


def to_do(plan: Plan, done: dict[str, OutcomeRow], elapsed: float) -> list[Planned]:
    """Return the checks of the round to come: those done least often. None when the run is over.

    A round that has begun is finished, so every check is done equally often, and at least once.
    """
    times = {check.id: rounds(done.get(check.id)) for check in plan.checks}
    least, most = min(times.values()), max(times.values())
    more = least < plan.repeat or (plan.duration is not None and elapsed < plan.duration)
    return [check for check in plan.checks if times[check.id] == least] if more or least < most else []


def fold(before: OutcomeRow | None, now: OutcomeRow) -> OutcomeRow:
    """Return one row for all rounds so far: that of the worst of them, with the spread of all."""
    spread = before.spread if before else None
    seen = dict(spread.statuses) if spread else {}
    seen[now.status] = seen.get(now.status, 0) + 1
    worse = before is None or _WORST_FIRST.index(now.status) < _WORST_FIRST.index(before.status)
    values = [*(spread.values if spread else []), *_numbers(now)]
    number = sum(seen.values())
    folded = Spread(
        rounds=number,
        statuses=seen,
        told_in=number if worse or spread is None else spread.told_in,
        values=values,
        smallest=min(values, default=None),
        median=statistics.median(values) if values else None,
        largest=max(values, default=None),
    )
    return structs.replace(now if worse or before is None else before, spread=folded)


def _numbers(row: OutcomeRow) -> list[float]:
    number = isinstance(row.value, (int, float)) and not isinstance(row.value, bool)
    return [row.value] if number else []
