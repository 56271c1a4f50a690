"""Today's rules on stored evidence: what was edited is found, and what broke stays broken."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from envcheck.checks.support import process_group
from envcheck.node.snapshot import Gpu, Signal, Snapshot
from envcheck.reports.model import RunReport, load, rejudge
from envcheck.runner.planning import discover, plan
from envcheck.runner.schema import Attempt, OutcomeRow
from tests import builders
from tests.builders import machine, report

DATA = Path(__file__).parents[1] / "data"
SNAPSHOT = machine("h100x8")
DEVICES = [{"index": i, "name": g.signal("name").value, "uuid": g.uuid} for i, g in enumerate(SNAPSHOT.gpus)]
SEEN = {"device_count": 8, "devices": DEVICES, "python": "3.12.3", "torch": "2.8.0+cu128", "cuda": "12.8"}


def row(identity: str, status: Any, **more: Any) -> OutcomeRow:
    kind = next((f.kind for f in discover() if f.id == identity), "env")
    return builders.row(identity, status, **{"kind": kind, "summary": "then", **more})


@pytest.fixture
def past() -> Callable[..., RunReport]:
    """Return what makes the report of a run of these checks on eight H100."""

    def make(*outcomes: OutcomeRow, require_gpu: bool = False, **facts: Any) -> RunReport:
        chosen = [f for f in discover() if f.id in {o.id for o in outcomes}]
        planned = plan(chosen, level="quick", nproc=2, require_gpu=require_gpu)
        return report(*outcomes, **{"plan": planned, "snapshot": SNAPSHOT, "environment": SEEN, **facts})

    return make


def ranks(wrong: int = 0) -> list[dict[str, Any]]:
    results = {dtype: {"wrong": 0} for dtype in ("float32", "float16", "bfloat16")}
    standing = {"world": 8, "host": "n1", "is_cuda": True, "backend": "nccl"}
    made = [{"rank": i, "device": d["uuid"], "results": results, **standing} for i, d in enumerate(DEVICES)]
    first = {"wrong": wrong, "index": 7, "got": 1.0, "expected": 2.0, "xor": "0x1"}
    made[3] = {**made[3], "results": {**results, "float32": first}}
    return made


def test_a_planned_check_whose_result_was_taken_out_is_an_error(past: Callable[..., RunReport]) -> None:
    whole = past(row("driver-nvml", "pass"), row("all-reduce", "skip", left_out=True))
    assert rejudge(whole).changed == []
    cut = structs.replace(whole, outcomes=whole.outcomes[:1])
    actual = rejudge(cut)
    assert actual.changed == [("all-reduce", "nothing", "error")]
    assert (actual.report.outcomes[1].code, actual.report.verdict.exit_code) == ("worker.result-missing", 3)
    assert rejudge(structs.replace(cut, ended="")).changed == []


def test_a_pass_whose_measurements_were_taken_out_is_an_error() -> None:
    recorded = load(DATA / "reports" / "cpu.json")
    emptied = [
        structs.replace(outcome, ranks=[], attempts=[structs.replace(one, ranks=[]) for one in outcome.attempts])
        for outcome in recorded.outcomes
    ]
    held = {one.id for one in recorded.outcomes if one.kind == "env" and one.status in ("pass", "warn")}
    actual = rejudge(structs.replace(recorded, outcomes=emptied)).report
    assert len(held) > 20
    assert {one.status for one in actual.outcomes if one.id in held} == {"error"}
    assert actual.verdict.exit_code == 3


def test_a_failure_that_was_taken_out_of_the_plan_and_made_a_pass_fails_again() -> None:
    recorded = load(DATA / "reports" / "h100x8-slow-gpu.json")
    failed = {one.id for one in recorded.outcomes if one.status == "fail"}
    left = [check for check in recorded.plan.checks if check.id not in failed]
    edited = [structs.replace(one, status="pass") if one.id in failed else one for one in recorded.outcomes]
    plan_ = structs.replace(recorded.plan, checks=left)
    actual = rejudge(structs.replace(recorded, plan=plan_, outcomes=edited)).report
    assert {one.id for one in actual.outcomes if one.status == "fail"} == failed
    assert actual.verdict.exit_code == 1


def test_what_real_nccl_gave_on_an_h200_is_right_but_for_the_gpu_that_both_ranks_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded = load(DATA / "reports" / "h200-two-ranks.json")
    held = {one.id: one.status for one in rejudge(recorded).report.outcomes if one.code == "rank.shared-gpu"}
    assert {"all-reduce", "all-reduce-bandwidth", "collectives", "ddp", "fsdp", "straggler"} == held.keys()
    monkeypatch.setattr(process_group, "_shared", lambda _: None)
    again = {one.id: one.status for one in rejudge(recorded).report.outcomes}
    assert {again[identity] for identity in held} == {"pass"}


def test_a_pass_of_several_attempts_on_a_sick_node_is_none(past: Callable[..., RunReport]) -> None:
    """A run that is repeated holds what it read from the node last, and the worst round counts."""
    bad = Snapshot(SNAPSHOT.taken, {**SNAPSHOT.signals, "driver.library": Signal("550.54.14")}, SNAPSHOT.gpus)
    attempt = Attempt(status="pass", value=None, seconds=1.0, body=1.0)
    twice = row("driver-nvml", "pass", attempts=[attempt, structs.replace(attempt, round=2, shown=True)])
    assert rejudge(past(twice)).changed == []
    assert rejudge(past(twice, snapshot=bad)).changed == [("driver-nvml", "pass", "fail")]
    # Of an earlier round nothing is left to judge.
    first = row("driver-nvml", "fail", attempts=[structs.replace(attempt, status="fail", shown=True), attempt])
    assert rejudge(past(first)).changed == []


def test_a_skip_for_which_the_report_holds_no_reason_is_an_error() -> None:
    recorded = load(DATA / "reports" / "h200x1.json")
    # Skipped on one GPU whatever is measured, as all-reduce is: that is known without measurements.
    assert {one.status for one in rejudge(recorded).report.outcomes if one.id == "all-reduce"} == {"skip"}
    edited = [
        structs.replace(one, status="skip", ranks=[], attempts=[]) if one.id == "gemm-throughput" else one
        for one in recorded.outcomes
    ]
    actual = rejudge(structs.replace(recorded, outcomes=edited))
    assert actual.changed == [("gemm-throughput", "skip", "error")]
    assert actual.report.verdict.exit_code == 3


def test_a_snapshot_is_judged_by_todays_rules(past: Callable[..., RunReport]) -> None:
    bad = Snapshot(SNAPSHOT.taken, {**SNAPSHOT.signals, "driver.library": Signal("550.54.14")}, SNAPSHOT.gpus)
    actual = rejudge(past(row("driver-nvml", "pass"), snapshot=bad))
    assert actual.changed == [("driver-nvml", "pass", "fail")]
    assert (actual.report.verdict.status, actual.report.verdict.exit_code) == ("fail", 1)
    assert actual.report.outcomes[0].remedy
    assert actual.report.judged_by
    [change] = actual.report.outcomes[0].changes
    assert (change.rule, change.before, change.after) == ("judged-again", "pass", "fail")
    rejudged_report = rejudge(actual.report)
    assert (rejudged_report.changed, rejudged_report.report.outcomes[0].changes) == ([], [change])


@pytest.mark.parametrize(("wrong", "status"), [(0, "pass"), (1, "fail")])
@pytest.mark.parametrize("then", ["pass", "fail"])
def test_measurements_are_judged_again(past: Callable[..., RunReport], wrong: int, status: str, then: str) -> None:
    rejudged_report = rejudge(past(row("all-reduce", then, ranks=ranks(wrong), remedy="r")))
    assert rejudged_report.report.outcomes[0].status == status
    assert rejudged_report.report.outcomes[0].ranks == ranks(wrong)


@pytest.mark.parametrize(
    "broken",
    [
        row("all-reduce", "error", summary="rank 3 died of SIGSEGV", code="process.lost", ranks=ranks()),
        row("all-reduce", "error", summary="took longer than 120 s", ranks=[*ranks()[:7], None]),
        row("all-reduce", "error", summary="the worker stopped answering and was ended"),
        row("all-reduce", "skip", summary="did not fit into the budget", left_out=True),
    ],
)
def test_what_was_not_measured_whole_stays_what_it_was(past: Callable[..., RunReport], broken: OutcomeRow) -> None:
    rejudged_report = rejudge(past(broken))
    assert rejudged_report.report.outcomes == [broken]
    assert rejudged_report.report.verdict.exit_code == 3


def test_what_an_older_report_does_not_hold_is_no_pass_and_is_told_as_that(past: Callable[..., RunReport]) -> None:
    older = [{name: value for name, value in rank.items() if name != "results"} for rank in ranks()]
    rejudged_report = rejudge(past(row("all-reduce", "pass", ranks=older)))
    assert rejudged_report.report.verdict.exit_code == 3
    outcome = rejudged_report.report.outcomes[0]
    assert outcome.status == "error"
    assert outcome.summary.startswith("pass then; today's rule needs what this report does not hold: ")
    assert outcome.remedy == "measure again with `envcheck run --only all-reduce`"
    assert {finding.remedy for finding in outcome.findings} <= {outcome.remedy}
    assert rejudge(rejudged_report.report).report.outcomes[0].summary == outcome.summary


def test_a_gpu_that_had_to_be_there_has_to_be_there_again(past: Callable[..., RunReport]) -> None:
    none = {"python": "3.12.3", "torch": "2.8.0+cu128", "cuda": "12.8", "device_count": 0, "devices": []}
    shm = row("shm", "pass", ranks=[{"rank": 0, "total": 64 << 30, "free": 64 << 30}])
    rejudged_report = rejudge(past(shm, mode="cpu", environment=none, snapshot=Snapshot(), require_gpu=True))
    assert [(o.id, o.status) for o in rejudged_report.report.outcomes] == [("shm", "pass"), ("require-gpu", "fail")]


def test_a_lost_gpu_is_named_again_as_long_as_the_snapshot_has_it(past: Callable[..., RunReport]) -> None:
    signals = {**SNAPSHOT.gpus[5].signals, "utilization": Signal(reason="NVML: GPU is lost", why="lost")}
    gpus = [*SNAPSHOT.gpus[:5], Gpu(SNAPSHOT.gpus[5].uuid, signals), *SNAPSHOT.gpus[6:]]
    snapshot = Snapshot(SNAPSHOT.taken, SNAPSHOT.signals, gpus)
    for before in ([row("ecc", "pass")], [row("ecc", "pass"), row("lost-gpus", "error")]):
        rejudged_report = rejudge(past(*before, snapshot=snapshot))
        assert [(o.id, o.status) for o in rejudged_report.report.outcomes] == [("ecc", "pass"), ("lost-gpus", "error")]
        assert rejudged_report.report.verdict.exit_code == 3
    healed = rejudge(past(row("ecc", "pass"), row("lost-gpus", "error")))
    assert [(o.id, o.status) for o in healed.report.outcomes] == [("ecc", "pass")]


def test_an_error_that_names_a_limit_is_told_again_with_what_lifts_it(past: Callable[..., RunReport]) -> None:
    met = {"python": "3.12.3", "error": "MemoryError (limit: 5 bytes of address space, see `ulimit -v`)"}
    judged = rejudge(past(row("all-reduce", "skip", left_out=True), environment=met)).report.outcomes
    assert [o.remedy.split(",")[0] for o in judged if o.id == "torch"] == ["raise it with `ulimit -v unlimited`"]
