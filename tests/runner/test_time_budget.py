"""A budget is spent on the most telling first, and what it leaves out is told: never a pass, never silence."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from envcheck.runner.execute import Run
from envcheck.runner.planning import STARTING, CheckModule, expected_to_fit, most_telling_first, plan
from tests.builders import check_module
from tests.tables import each


def check(identity: str, kind: Any = "env", **about: Any) -> CheckModule:
    return check_module(identity, kind, **{"seconds": 1.0, **about})


def test_the_order_is_the_written_one() -> None:
    chosen = [
        check("fast", performance=True, seconds=0.5),
        check("late", level="standard"),
        check("dear", seconds=9.0),
        check("cheap"),
        check("cheap-too"),
        check("node", "node", level="standard"),
    ]
    result = [f.id for f in most_telling_first(chosen)]
    assert result == ["node", "cheap", "cheap-too", "dear", "fast", "late"]


@each(
    ("spare", "fitting"),
    [
        (3.0, ["node", "a", "b"]),
        (2.9, ["node", "a"]),
        (10.0, ["node", "a", "b", "c"]),
        (9.9, ["node", "a", "b"]),
        (-1.0, ["node"]),
    ],
)
def test_a_plan_says_beforehand_what_it_expects_to_fit(spare: float, fitting: list[str]) -> None:
    chosen = [check("node", "node", seconds=99.0), check("a"), check("b", seconds=2.0), check("c", seconds=7.0)]
    assert expected_to_fit(plan(chosen, level="full", nproc=2, budget=STARTING + spare)) == fitting
    assert expected_to_fit(plan(chosen, level="full", nproc=2)) == ["node", "a", "b", "c"]


def test_what_came_before_counts_and_a_check_that_has_begun_is_finished(
    add: Callable[..., Path], run_site: Callable[..., Run]
) -> None:
    add("a_longer_than_planned", "time.sleep(3.0)\nreturn {}", "ranks=1, seconds=0.1")
    add("b_after_it", "return {}", "ranks=1, seconds=0.1")
    outcomes = run_site(budget=2.5).outcomes
    assert [(o.status, o.left_out) for o in outcomes.values()] == [("pass", False), ("skip", True)]
