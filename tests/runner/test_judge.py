"""From measurements to one verdict: closed in every doubt."""

from collections.abc import Callable
from typing import Any

from envcheck.checks import Outcome, View, passed, skipped
from envcheck.node.snapshot import Signal, Snapshot
from envcheck.runner.judging import decide, exit_code, unmeasured, verdict
from envcheck.runner.planning import CheckModule, plan
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
    assert exit_code(statuses) == code


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
