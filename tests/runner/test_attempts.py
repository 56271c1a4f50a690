"""Only slowness is taken back by a better measurement; what was wrong once is the verdict."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from envcheck.checks import ERROR, FAIL, PASS, WARN, Outcome, View, failed, passed, too_slow, undecided, warned
from envcheck.node.snapshot import Signal, Snapshot
from envcheck.runner import execute, judging, outcomes
from envcheck.runner.execute import Run, Watcher, validate
from envcheck.runner.outcomes import outcome_row
from envcheck.runner.planning import plan
from envcheck.runner.schema import OutcomeRow, Spread
from tests import builders
from tests.builders import check_module
from tests.runner.conftest import AddCheck, RunSite
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


def spread(outcome: OutcomeRow) -> Spread:
    assert outcome.spread is not None
    return outcome.spread


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
    assert (spread(combined).rounds, spread(combined).told_in) == (301, 151)


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
    assert judged(Outcome(ERROR, "no number", value=float("nan"))).value is None
    wrong = OUTCOMES["wrong"]
    alone = judged(Outcome(PASS, "all well", findings=(bad,)))
    assert alone.status == ERROR
    beside = judged(Outcome(FAIL, "wrong", remedy="r", findings=(wrong, bad)))
    assert beside.status == FAIL
    assert {f.status for f in beside.findings} == {FAIL, ERROR}


def row(status: Any, value: Any = None) -> OutcomeRow:
    return builders.row("a", status, f"{status} {value}", value=value)


def folded(*rows: OutcomeRow) -> OutcomeRow:
    whole = None
    for one in rows:
        whole = outcomes.fold(whole, one)
    assert whole is not None
    return whole


@each("worst", ["fail", "error", "warn", "skip"])
def test_one_round_that_is_no_pass_wins_over_all_that_are(worst: str) -> None:
    combined = folded(row("pass"), row("pass"), row(worst), row("pass"))
    assert combined.status == worst
    told = spread(combined)
    assert (told.rounds, told.told_in, told.statuses) == (4, 3, {"pass": 3, worst: 1})


def repeated(*digests: str) -> OutcomeRow:
    """Return the row of a fingerprint that passed, with each rank's digest."""
    ranks = [{"rank": r, "device": f"GPU-{r}", "digests": [d, d], "repeats": 2} for r, d in enumerate(digests)]
    return structs.replace(row("pass"), details={"bits": {str(r): d for r, d in enumerate(digests)}}, ranks=ranks)


def test_bits_that_change_between_rounds_fail_naming_the_gpu() -> None:
    assert folded(repeated("a", "a"), repeated("a", "a"), repeated("a", "a")).status == "pass"
    combined = folded(repeated("a", "a"), repeated("a", "a"), repeated("a", "b"), repeated("a", "a"))
    assert (combined.status, combined.summary) == ("fail", "rank 1 on GPU-1 gave other bits than in the rounds before")
    assert combined.remedy
    assert (spread(combined).told_in, spread(combined).statuses) == (3, {"pass": 3, "fail": 1})


def counted(file: Path) -> str:
    return f"seen = open({str(file)!r}, 'a+')\nseen.write('x')\nseen.seek(0)\nreturn {{'x': len(seen.read())}}"


VALUE = (
    "def judge(view, ranks):\n    x = ranks[0]['x']\n    return failed('odd', fix='mend it', value=x) if x == 2 else "
)
VALUE += "passed('fine', value=x)\n"


def test_rounds_are_really_run_and_the_bad_one_decides(add: AddCheck, run_site: RunSite, tmp_path: Path) -> None:
    add("counts", counted(tmp_path / "seen"), "ranks=1", VALUE)
    add("sound", "return {}", "ranks=1")
    run = run_site(repeat=3)
    combined = run.outcomes["counts"]
    assert (combined.status, combined.value) == ("fail", 2)
    assert spread(combined).values == [1, 2, 3]
    assert [o.spread.rounds for o in run.outcomes.values() if o.spread] == [3, 3]
    assert run.verdict.sentence.endswith("; 3 rounds")
    assert run.verdict.exit_code == 1


@each(
    ("choices", "data", "elapsed", "to_do"),
    [
        ({}, {}, 0.0, ["a", "b"]),
        ({}, {"a": 1}, 0.0, ["b"]),
        ({}, {"a": 1, "b": 1}, 0.0, []),
        ({"repeat": 2}, {"a": 1, "b": 1}, 0.0, ["a", "b"]),
        ({"repeat": 2}, {"a": 2, "b": 1}, 0.0, ["b"]),
        ({"repeat": 2}, {"a": 2, "b": 2}, 0.0, []),
        ({"duration": 9.0}, {}, 9.0, ["a", "b"]),
        ({"duration": 9.0}, {"a": 4, "b": 4}, 8.9, ["a", "b"]),
        ({"duration": 9.0}, {"a": 4, "b": 4}, 9.0, []),
        ({"duration": 9.0}, {"a": 5, "b": 4}, 99.0, ["b"]),
    ],
)
def test_a_round_that_has_begun_is_finished_and_no_other_begins_when_it_is_over(
    choices: dict[str, Any], data: dict[str, int], elapsed: float, to_do: list[str]
) -> None:
    checks = [check_module(identity) for identity in ("a", "b")]
    known = {identity: folded(*[row("pass")] * count) for identity, count in data.items()}
    made = plan(checks, level="full", nproc=2, **choices)
    assert [c.id for c in execute.to_do(made, known, elapsed)] == to_do


def test_the_node_is_read_in_every_round(site: Path, run_site: RunSite) -> None:
    (site / "node" / "heat.py").write_text(
        '"""Doc."""\nfrom envcheck.checks import Check, passed\nCHECK = Check(promise="p", level="quick")\n'
        "def judge(view):\n    return passed('warm', value=view.snapshot.signal('heat').value)\n"
    )
    made = run_site()
    heats: Iterator[float] = iter((40.0, 90.0))
    run = Run(dataclasses.replace(made.asked, plan=plan([*made.asked.chosen], level="full", nproc=2, repeat=2)))
    validate(run, lambda: Snapshot("now", {"heat": Signal(next(heats))}), Watcher())
    assert spread(run.outcomes["heat"]).values == [40.0, 90.0]


def test_a_driver_that_changes_between_rounds_is_a_failure_that_names_both(add: AddCheck, run_site: RunSite) -> None:
    add("one", "return {}", "ranks=1")
    made = run_site()
    drivers = iter(("570.26", "570.124.06", "570.124.06"))
    run = Run(dataclasses.replace(made.asked, plan=plan([*made.asked.chosen], level="full", nproc=2, repeat=3)))
    validate(run, lambda: Snapshot("now", {"driver.version": Signal(next(drivers))}), Watcher())
    changed = run.outcomes["same-environment"]
    assert (changed.status, changed.code) == ("fail", "same-environment.changed")
    assert "driver.version was 570.26, is 570.124.06" in changed.summary
    assert run.verdict.exit_code == 1
