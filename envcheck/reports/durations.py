"""How long, how often and how evenly: what a report and its progress line say of time."""

from __future__ import annotations

from collections.abc import Collection

from envcheck.reports import phrases
from envcheck.reports.model import RunReport
from envcheck.runner.planning import expected_to_fit
from envcheck.runner.schema import OutcomeRow, Plan, PlannedCheck

# Below a second nobody asks where it went.
_TELLING = 1.0
_SHORT = 120.0
_LONGEST = 6


def duration(seconds: float) -> str:
    """Return "<1 s", "90 s", "10 min" or "10 min 5 s"."""
    if seconds < 1:
        return "<1 s"
    if seconds < _SHORT:
        return f"{seconds:.0f} s"
    minutes, seconds_left = divmod(round(seconds), 60)
    return f"{minutes} min {seconds_left} s" if seconds_left else f"{minutes} min"


def cost(plan: Plan, check: PlannedCheck, fitting: Collection[str]) -> str:
    """Return how long one check is expected to take here, or why it takes no time."""
    if check.seconds and not plan.seconds_of(check):
        return "no GPU" if check.gpus and not plan.gpus else "too few"
    return duration(check.seconds) if check.id in fitting else "left out"


def extent(plan: Plan) -> str:
    """Return how long a plan is expected to take, and how much of it fits into its budget."""
    took = f"about {duration(plan.seconds)}" if plan.seconds >= 1 else "under a second"
    if plan.duration is not None:
        return f"again and again for {duration(plan.duration)}"
    if plan.repeat > 1:
        return f"{plan.repeat} times, {took}"
    if plan.budget is not None:
        fit = len(expected_to_fit(plan))
        return f"{took} if all; {fit} expected to fit into {duration(plan.budget)}"
    return took


def taken(report: RunReport) -> str:
    """Return the seconds taken against those planned: in all, of the start, and of the checks that took longest.

    It lists the checks that took a second or more, or were planned to; of a repeated run those of the round that is
    shown. Empty for an old report.
    """
    if report.timing is None:
        return ""
    # A skip found nothing to measure: what was planned for it says nothing of the time that was taken.
    measured = [o for o in report.outcomes if _seconds(o) > 0 and o.status != "skip"]
    planned = sum(o.planned * (o.spread.rounds if o.spread else 1) for o in measured)
    telling = [o for o in measured if max(_seconds(o), o.planned) >= _TELLING]
    longest = sorted(telling, key=_seconds, reverse=True)[:_LONGEST]
    parts = [f"starting Python and torch {report.timing.starting:.1f} s"]
    parts += [f"{o.id} {_seconds(o):.1f} s (planned {o.planned:g} s)" for o in longest]
    parts += [f"{len(telling) - len(longest)} more in the report"] if len(telling) > len(longest) else []
    return f"{report.timing.taken:.1f} s (planned for what was measured: {planned:.1f} s): {'; '.join(parts)}"


def _seconds(outcome: OutcomeRow) -> float:
    shown = {attempt.round for attempt in outcome.attempts if attempt.shown} or {1}
    return sum(attempt.seconds for attempt in outcome.attempts if attempt.round in shown)


def spread(outcome: OutcomeRow) -> tuple[str, str]:
    """Return how often a repeated check came to what, and from where to where its value went; "" where it had none."""
    rounds = outcome.spread
    if rounds is None:
        return "", ""
    often = ", ".join(f"{count} {status}" for status, count in rounds.statuses.items())
    if outcome.status != "pass" and len(rounds.statuses) > 1:
        often += f" (first in round {rounds.told_in})"
    if rounds.smallest is None or rounds.median is None or rounds.largest is None:
        return often, ""
    each = outcome.unit if outcome.unit in phrases.BYTES else ""
    sizes = (phrases.quantity(float(v), each) for v in (rounds.smallest, rounds.median, rounds.largest))
    return often, f"{' / '.join(sizes)} {'' if each else outcome.unit}".strip()


def progress(plan: Plan, done: int, now: str, seconds: tuple[float, float], number: int) -> str:
    """Return the line shown while `now` runs ("": Python and torch start); `seconds` are its own, and in all."""
    planned = {check.id: check.seconds for check in plan.checks}.get(now)
    estimate = f" of about {duration(planned)}" if planned and planned >= _TELLING else ""
    current = f"{now or 'starting Python and torch'} {duration(seconds[0])}{estimate}"
    rounds = f"round {number}{f' of {plan.repeat}' if plan.repeat > 1 else ''}, " if plan.repeated else ""
    total = plan.budget or plan.seconds
    in_all = f"{duration(seconds[1])}{f' of about {duration(total)}' if total >= _TELLING else ''} in all"
    return f"{rounds}{done}/{len(plan.checks)} done; {current}; {in_all}"
