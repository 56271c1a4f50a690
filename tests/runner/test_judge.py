"""From measurements to one verdict: closed in every doubt."""

import dataclasses
from collections.abc import Callable
from typing import Any

from envcheck.checks import ERROR, FAIL, PASS, Outcome, View, failed, passed, skipped, too_slow
from envcheck.node.snapshot import Gpu, Signal, Snapshot
from envcheck.runner import judging, outcomes
from envcheck.runner.judging import decide, unmeasured, verdict
from envcheck.runner.outcomes import outcome_row
from envcheck.runner.planning import CheckModule, plan
from envcheck.runner.schema import OutcomeRow
from tests import builders
from tests.builders import row
from tests.tables import each

VIEW = View(Snapshot(signals={"read": Signal(1), "unread": Signal(reason="permission denied", why="failed")}))


def check_module(judge: Callable[..., Any], **check: Any) -> CheckModule:
    return builders.check_module("x", "node", judge, **check)


@each("error", [ZeroDivisionError, KeyError, IndexError, TypeError, ValueError, AttributeError])
def test_a_judge_that_breaks_is_an_error_that_names_its_file(error: type[Exception]) -> None:
    def judge(_: View) -> Outcome:
        raise error

    outcome = decide(check_module(judge), VIEW)
    assert outcome.status == "error"
    assert outcome.summary.startswith(f"bug in this check: {error.__name__}")
    assert "x.py" in outcome.remedy


def test_all_gpus_are_said_so_and_a_longer_number_is_kept() -> None:
    listed = "GPUs 0, 1, 2, 3, 4, 5, 6 and 7"
    outcome = decide(check_module(lambda _: passed(f"{listed}; {listed}2; {listed}.")), builders.gpu_view("h100x8"))
    assert outcome.summary == f"all 8 GPUs; {listed}2; all 8 GPUs."


def test_gpus_enough_one_too_few_and_none() -> None:
    two = builders.check_module("x", "env", gpus=2)

    def without(gpus: int, *, require_gpu: bool) -> Outcome | None:
        planned = plan([two], level="full", nproc=2, require_gpu=require_gpu)
        return unmeasured(two, View(Snapshot(), {"device_count": gpus, "cuda": "12.8"}), planned)

    assert without(2, require_gpu=True) is None
    assert without(1, require_gpu=True) == skipped("needs 2 GPUs, found 1", code="gpu.not-enough")
    lacking = without(0, require_gpu=False)
    assert lacking == skipped("needs 2 GPUs, found none: CUDA shows none", code="gpu.not-enough")
    required = without(0, require_gpu=True)
    assert required is not None
    assert (required.status, bool(required.remedy), required.code) == ("fail", True, "gpu.required")


@each(
    ("statuses", "code"),
    [
        (["pass"], 0),
        (["pass", "warn", "skip"], 0),
        (["pass", "fail"], 1),
        (["fail", "error"], 1),
        (["pass", "error"], 3),
        (["skip", "warn"], 3),
        ([], 3),
    ],
)
def test_the_exit_code(statuses: list[str], code: int) -> None:
    assert verdict([row("x", status) for status in statuses], "gpu").exit_code == code


def test_a_verdict_on_a_cpu_never_reads_like_a_gpus() -> None:
    for statuses in (["pass"], ["fail"], ["error"], ["skip"]):
        outcomes = [row("a", s) for s in statuses]
        assert "no GPU was tested" in verdict(outcomes, "cpu").sentence
        assert "no GPU was tested" not in verdict(outcomes, "gpu").sentence
        assert verdict(outcomes, "unknown").sentence.count("without an answer from torch; no GPU was tested") == 1
    assert verdict([row("a", "pass")], "cpu").sentence == "PASS: 1 promise proved on CPU; no GPU was tested"


def test_what_was_cut_short_is_no_pass() -> None:
    run_verdict = verdict([row("a", "pass")], "gpu", complete=False)
    assert (run_verdict.status, run_verdict.exit_code, run_verdict.sentence) == ("error", 3, "UNDETERMINED: cut short")
    assert verdict([row("a", "fail")], "gpu", complete=False).exit_code == 1


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
        builders.check_module(performance=True, judge=lambda *_: outcome),
        view or View(Snapshot()),
        [{"rank": 0}],
        details,
    )


def as_row(outcome: Outcome, before: OutcomeRow | None = None, **more: Any) -> OutcomeRow:
    """Return the row of a measurement, after another one."""
    event = {"event": "done", "ranks": [{"rank": 0, "device": "cpu"}], "seconds": 1.0, "body": 0.5, "logs": [""]}
    detailed = dataclasses.replace(outcome, details={**outcome.details, **more})
    return outcome_row(builders.check_module(performance=True), detailed, event, before, 1.0)


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
