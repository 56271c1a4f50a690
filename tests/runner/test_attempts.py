"""Only slowness is taken back by a better measurement; what was wrong once is the verdict."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envcheck.checks import ERROR, FAIL, PASS, WARN, Outcome, View, failed, passed, too_slow, undecided, warned
from envcheck.node.snapshot import Snapshot
from envcheck.runner import judging, outcomes
from envcheck.runner.outcomes import outcome_row
from envcheck.runner.schema import OutcomeRow
from tests.builders import check_module
from tests.tables import each

OUTCOMES = {
    "good": passed("fine", value=400.0, unit="GB/s"),
    "low": warned("low", fix="look", value=300.0, code="speed.low"),
    "slow": too_slow("slow", fix="look", value=200.0, code="speed.slow"),
    "wrong": failed("wrong data", fix="take it out", code="data.wrong", culprit="rank 1"),
    "lost": undecided("rank 1 died of SIGSEGV", fix="see the log", code="process.lost"),
}
KINDS = st.sampled_from([*OUTCOMES])


def _judge(view: View, ranks: list[dict[str, Any]]) -> Outcome:  # noqa: ARG001 (a judge's signature)
    return OUTCOMES[ranks[0]["kind"]]


FOUND = check_module(judge=_judge, performance=True)


def made(kind: str, before: OutcomeRow | None = None) -> OutcomeRow:
    """Return the row of one measurement that came to this, after another one."""
    event = {"event": "done", "ranks": [{"kind": kind}], "seconds": 1.0, "body": 0.5, "logs": ["last words"]}
    return outcome_row(FOUND, OUTCOMES[kind], event, before, 1.0)


def run_of(rounds: list[list[str]]) -> OutcomeRow:
    """Return the row after rounds of measurements, as a run makes it."""
    whole: OutcomeRow | None = None
    for kinds in rounds:
        now: OutcomeRow | None = None
        for kind in kinds:
            if now is None or outcomes.unfinished(now):
                now = made(kind, now)
        assert now is not None
        whole = outcomes.fold(whole, now) if len(rounds) > 1 else now
    assert whole is not None
    return whole


def measured(rounds: list[list[str]]) -> set[str]:
    """Return what was really measured: nothing follows anything but a slow first attempt."""
    return {kind for kinds in rounds for kind in (kinds[:2] if kinds[0] == "slow" else kinds[:1])}


ROUNDS = st.lists(st.lists(KINDS, min_size=1, max_size=2), min_size=1, max_size=5)


@given(ROUNDS)
def test_what_was_wrong_once_is_the_verdict_whatever_comes_later(rounds: list[list[str]]) -> None:
    combined, seen = run_of(rounds), measured(rounds)
    if "wrong" in seen:
        assert (combined.status, combined.remeasure) == (FAIL, False)
        assert {f.code for f in combined.findings or [outcomes.as_finding(combined)]} >= {"data.wrong"}
    if "lost" in seen:
        assert combined.status in (FAIL, ERROR)
    if seen == {"good"}:
        assert combined.status == PASS
    assert len([a for a in combined.attempts if a.shown]) == 1


@each(
    ("kinds", "status", "shown"),
    [
        (["slow", "good"], PASS, 1),
        (["slow", "low"], WARN, 1),
        (["slow", "slow"], FAIL, 1),
        (["slow", "wrong"], FAIL, 1),
        (["slow", "lost"], FAIL, 0),
        (["wrong", "good"], FAIL, 0),
        (["lost", "good"], ERROR, 0),
        (["low", "good"], WARN, 0),
    ],
)
def test_the_second_measurement_counts_only_after_slowness(kinds: list[str], status: str, shown: int) -> None:
    combined = outcomes.combine([made(kind) for kind in kinds])
    assert (combined.status, [a.shown for a in combined.attempts].index(True)) == (status, shown)
    assert [a.status for a in combined.attempts] == [OUTCOMES[kind].status for kind in kinds]


def test_a_report_of_a_long_repeated_run_keeps_the_wrong_round_and_not_every_good_one() -> None:
    combined = run_of([*[["good"]] * 150, ["wrong"], *[["good"]] * 150])
    assert len(combined.attempts) <= 100
    assert "wrong data" in [a.summary for a in combined.attempts]
    assert combined.spread is not None
    assert (combined.spread.rounds, combined.spread.told_in) == (301, 151)


def judged(outcome: Any) -> Outcome:
    """Return what a judge that returns this comes to."""
    return judging.decide(FOUND._replace(judge=lambda *_: outcome), View(Snapshot()), [{"kind": "good"}])


BAD = [
    Outcome(FAIL, "no remedy"),
    Outcome("fine", "no such status"),
    too_slow("not a number", fix="look", value=float("nan"), code="it.nan"),
    warned("no number either", fix="look", value=float("nan"), code="it.nan"),
    Outcome(WARN, "too slow, yet no failure", remedy="look", remeasure=True),
    Outcome(PASS, "nested", findings=(passed("x"),)),
]


@pytest.mark.parametrize("bad", BAD, ids=lambda outcome: outcome.summary)
def test_a_finding_that_is_not_sound_is_an_error_and_hides_no_other(bad: Outcome) -> None:
    wrong = OUTCOMES["wrong"]
    alone = judged(Outcome(PASS, "all well", findings=(bad,)))
    assert alone.status == ERROR
    beside = judged(Outcome(FAIL, "wrong", remedy="r", findings=(wrong, bad)))
    assert beside.status == FAIL
    assert {f.status for f in beside.findings} == {FAIL, ERROR}
