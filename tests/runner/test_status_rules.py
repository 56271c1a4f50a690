"""A status that changes after the judge names the rule that changed it, and reports say so."""

import dataclasses
from collections.abc import Callable
from typing import Any

from envcheck.checks import ERROR, FAIL, PASS, Outcome, View, failed, passed, too_slow
from envcheck.node.snapshot import Gpu, Signal, Snapshot
from envcheck.runner import judging, outcomes
from envcheck.runner.outcomes import outcome_row
from envcheck.runner.schema import OutcomeRow
from tests.builders import check_module
from tests.tables import each

SLOW = too_slow("slow", fix="look at the links", value=9.0, unit="GB/s", code="speed.slow")
FINE = passed("fine", value=90.0, unit="GB/s")
RAN_WITHOUT_P2P = {"ran_with": ["NCCL_P2P_DISABLE=1"]}
HELD = {"quota": 0.3, "periods": 20, "throttled": 15, "share": 0.75}
GPU = "GPU-1"
USED = Snapshot(
    gpus=[Gpu(GPU, {"processes": Signal(value=[{"pid": 4711, "name": "python"}]), "utilization": Signal(value=99.0)})]
)
ON_GPU = View(USED, {"devices": [{"uuid": GPU}]}, mode="gpu")


def decided(outcome: Any, view: View | None = None, details: dict[str, Any] | None = None) -> Outcome:
    """Return an outcome as a run decides it: what the judge returned, then the rules."""
    return judging.decide(
        check_module(performance=True, judge=lambda *_: outcome), view or View(Snapshot()), [{"rank": 0}], details
    )


def as_row(outcome: Outcome, before: OutcomeRow | None = None, **more: Any) -> OutcomeRow:
    """Return the row of a measurement, after another one."""
    event = {"event": "done", "ranks": [{"rank": 0, "device": "cpu"}], "seconds": 1.0, "body": 0.5, "logs": [""]}
    detailed = dataclasses.replace(outcome, details={**outcome.details, **more})
    return outcome_row(check_module(performance=True), detailed, event, before, 1.0)


CHANGES: dict[str, tuple[Callable[[], Outcome | OutcomeRow], str, str]] = {
    "contradiction": (lambda: decided(failed("broken", fix="", code="it.broken")), FAIL, ERROR),
    "busy-gpu": (lambda: decided(SLOW, ON_GPU), FAIL, ERROR),
    "cpu-quota": (lambda: decided(SLOW, details={"throttled": HELD}), FAIL, ERROR),
    "p2p-hang": (lambda: decided(FINE, details={**RAN_WITHOUT_P2P, "hung": "rank 0 hung"}), PASS, FAIL),
    "p2p-disabled": (lambda: decided(SLOW, details=RAN_WITHOUT_P2P), FAIL, ERROR),
    "second-measurement": (lambda: as_row(FINE, as_row(SLOW)), FAIL, PASS),
    "worse-measurement": (
        lambda: outcomes.measured_twice(as_row(FINE), as_row(failed("wrong", fix="out", code="data.wrong"))),
        PASS,
        FAIL,
    ),
    "worst-round": (
        lambda: outcomes.fold(outcomes.fold(None, as_row(FINE)), as_row(failed("wrong", fix="x", code="data.wrong"))),
        PASS,
        FAIL,
    ),
    "same-bits": (
        lambda: outcomes.fold(outcomes.fold(None, as_row(FINE, bits={"0": "a"})), as_row(FINE, bits={"0": "b"})),
        PASS,
        FAIL,
    ),
}


@each("rule", CHANGES)
def test_each_rule_that_changes_a_status_is_named_with_its_reason(rule: str) -> None:
    make, before, after = CHANGES[rule]
    outcome = make()
    assert outcome.status == after
    [change] = [change for change in outcome.changes if change.rule == rule]
    assert (change.before, change.after) == (before, after)
    assert change.reason


def test_a_speed_is_judged_where_a_quota_hardly_held_anything_back() -> None:
    hardly = {**HELD, "throttled": 1, "share": 0.05}
    assert decided(SLOW, details={"throttled": hardly}).status == FAIL
    assert decided(failed("wrong", fix="x", code="data.wrong"), details={"throttled": HELD}).status == FAIL
    for unsound in ("x", {**HELD, "quota": "x"}, {"share": 0.75}, {**HELD, "share": float("nan")}):
        assert decided(SLOW, details={"throttled": unsound}).status == FAIL


def test_every_rule_has_a_case_here() -> None:
    rules = set(judging.OUTCOME_RULES) | set(outcomes.ROW_RULES)
    assert set(CHANGES) == rules - {"judged-again"}  # see tests/reports/test_rejudge.py
