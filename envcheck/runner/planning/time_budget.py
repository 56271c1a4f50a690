"""A total time that is not enough for everything: what is done first, and what is left out.

The order, most telling first: what costs nothing (node checks: the snapshot is read anyway); then by level, the lowest
first; within a level whether it is right before whether it is fast, for a wrong answer makes its speed worthless; then
the cheapest first; then by name. A check is begun when the seconds planned for it fit into what is left, so a dear one
that does not fit makes room for the cheap ones after it. One that has begun is not cut short by the budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from envcheck.checks import LEVELS, Outcome, skipped
from envcheck.runner.planning.discover import CheckModule
from envcheck.runner.schema import Plan

# Before anything runs, Python and torch are taken to need this long: 2 s from a warm disk, tens from a cold or remote
# one. Once it runs, what they really took counts.
STARTING: Final = 5.0


def most_telling_first(chosen: Sequence[CheckModule]) -> list[CheckModule]:
    """Return the checks in the order in which a budget is spent on them."""
    return sorted(chosen, key=_telling)


def _telling(module: CheckModule) -> tuple[bool, int, bool, bool, float, str]:
    check = module.check
    return (
        module.kind == "env",
        LEVELS.index(check.level),
        not check.probe,
        check.performance,
        check.seconds,
        module.id,
    )


def expected_to_fit(plan: Plan) -> list[str]:
    """Return the ids that fit into the budget if each check takes what was planned for it; all without a budget."""
    left = float("inf") if plan.budget is None else plan.budget - STARTING
    fitting = []
    for check in plan.checks:
        seconds = plan.seconds_of(check) if check.kind == "env" else 0.0
        if check.kind == "env" and seconds > left:
            continue
        fitting.append(check.id)
        left -= seconds
    return fitting


def left_out(seconds: float, left: float, budget: float | None) -> Outcome:
    """Return the outcome of a check for which there was no time: no pass, and it says so."""
    remaining = f"{max(left, 0.0):.1f} s of the budget of {budget or 0.0:g} s were left"
    return skipped(f"left out: planned for {seconds:g} s, and {remaining}", code="budget.left-out")
