"""What changed between two runs: found where it is real, not where it is noise, and never by a GPU's index."""

import random
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from envcheck.node.snapshot import Gpu, Snapshot
from envcheck.reports import phrases
from envcheck.reports.compare import compare, lines
from envcheck.reports.model import load
from envcheck.reports.redact import redact
from envcheck.runner.schema import Attempt, OutcomeRow, Plan, Spread, Timing
from tests.builders import planned, report, row
from tests.tables import each

REPORTS = Path(__file__).parents[1] / "data" / "reports"
SIZES = [1 << 20 << (2 * i) for i in range(7)]


def nodes(*uuids: str) -> Snapshot:
    return Snapshot("", {}, [Gpu(uuid) for uuid in uuids])


def rate(value: float, **more: Any) -> OutcomeRow:
    return row("gemm", "pass", value=value, unit="TFLOP/s", **more)


def gpus(values: dict[str, float]) -> OutcomeRow:
    ranks = [
        {"rank": i, "is_cuda": True, "device": uuid, "values": {"bf16": v}}
        for i, (uuid, v) in enumerate(values.items())
    ]
    return row("gemm", "pass", unit="TFLOP/s", ranks=ranks)


def curves(factor: float, noise: float = 0.0, seed: int = 1) -> OutcomeRow:
    dice = random.Random(seed)  # noqa: S311 (noise)
    ranks = [
        {
            "rank": 0,
            "is_cuda": True,
            "device": "GPU-1",
            "curve": [{"bytes": s, "seconds": s * 1e-9 * factor * (1 + dice.gauss(0, noise))} for s in SIZES],
        }
    ]
    return row("nccl", "pass", ranks=ranks)


def test_a_run_compared_with_itself_has_not_changed() -> None:
    made = report(rate(700.0), curves(1.0))
    actual = compare(made, made)
    assert (actual.changes, actual.exit_code) == ([], 0)
    assert actual.compared == 2 + 2


@each(("after", "worse"), [(668.0, []), (664.0, ["gemm value"])])
def test_a_speed_is_slower_from_the_threshold_on(after: float, worse: list[str]) -> None:
    actual = compare(report(rate(700.0)), report(rate(after)))
    assert [change.what for change in actual.regressions] == worse
    assert actual.exit_code == (1 if worse else 0)


def test_more_is_better_or_worse_by_the_unit() -> None:
    slow = row("latency", "pass", value=20.0, unit="us")
    fast = row("latency", "pass", value=10.0, unit="us")
    assert compare(report(fast), report(slow)).regressions[0].shift == 1.0
    assert compare(report(slow), report(fast)).regressions == []
    faster = compare(report(rate(600.0)), report(rate(700.0)))
    assert ([c.worse for c in faster.changes], faster.exit_code) == ([False], 0)


def test_gpus_are_told_apart_by_uuid_not_by_index() -> None:
    before = report(gpus({"GPU-a": 700.0, "GPU-b": 650.0, "GPU-c": 700.0}))
    swapped = report(gpus({"GPU-b": 650.0, "GPU-c": 700.0, "GPU-a": 700.0}))
    assert compare(before, swapped).changes == []
    actual = compare(before, report(gpus({"GPU-b": 650.0, "GPU-c": 500.0, "GPU-a": 700.0})))
    assert [(change.gpu, change.what) for change in actual.changes] == [("GPU-c", "gemm values.bf16")]


def test_a_steady_curve_that_is_slower_is_told_and_a_noisy_one_is_not() -> None:
    steady = compare(report(curves(1.0, 0.005)), report(curves(1.08, 0.005, seed=2)))
    assert [change.gpu for change in steady.regressions] == ["GPU-1"]
    noisy = compare(report(curves(1.0, 0.3)), report(curves(1.08, 0.3, seed=2)))
    assert noisy.regressions == []


STATUSES = ("pass", "warn", "skip", "error", "fail")


@each("old", STATUSES)
@each("new", STATUSES)
def test_only_pass_is_a_pass(old: str, new: str) -> None:
    actual = compare(report(row("x", old, remedy="r")), report(row("x", new, remedy="r")))
    assert bool(actual.regressions) is (STATUSES.index(new) > STATUSES.index(old))
    assert [c.worse for c in actual.changes if c.kind == "status"] == (
        [] if old == new else [STATUSES.index(new) > STATUSES.index(old)]
    )


def test_a_gpu_that_is_gone_is_a_regression_and_a_new_one_is_not() -> None:
    both, one = (report(row("x", "pass"), snapshot=nodes(*u), environment={}) for u in (("GPU-1", "GPU-2"), ("GPU-1",)))
    assert [(c.gpu, c.after) for c in compare(both, one).regressions] == [("GPU-2", "gone")]
    assert compare(one, both).regressions == []


def test_a_check_lost_to_a_kill_is_a_regression() -> None:
    whole = report(row("x", "pass"), row("y", "pass"))
    cut = report(row("x", "pass"), plan=Plan(level="quick", checks=whole.plan.checks, nproc=2), ended="")
    assert [(c.what, c.after) for c in compare(whole, cut).regressions] == [("y", "never ran")]
    left_out = compare(whole, report(row("x", "pass")))
    assert (left_out.regressions, left_out.notes) == ([], ["only in the first: y"])


def test_a_cpu_run_is_not_held_against_a_gpu_run() -> None:
    actual = compare(report(rate(700.0)), report(rate(1.0), mode="cpu"))
    assert [change.kind for change in actual.regressions] == []
    assert "no speed was compared" in actual.notes[0]


def test_speeds_of_other_gpu_models_are_not_compared() -> None:
    actual = compare(load(REPORTS / "h100x1.json"), load(REPORTS / "h200x1.json"))
    assert [change for change in actual.changes if change.kind == "speed"] == []
    assert ("1 x NVIDIA H100 80GB HBM3", "1 x NVIDIA H200") in [(c.before, c.after) for c in actual.changes]
    assert "one ran on 1 x NVIDIA H100 80GB HBM3, the other on 1 x NVIDIA H200: no speed was compared" in actual.notes


@each(("before", "after", "worse"), [("cpu", "h100x1", None), ("h100x1", "cpu", True)])
def test_a_skip_for_other_ranks_is_no_regression_unless_gpus_went(before: str, after: str, worse: object) -> None:
    actual = compare(load(REPORTS / f"{before}.json"), load(REPORTS / f"{after}.json"))
    skipped = {c.worse for c in actual.changes if c.before.startswith("pass") and c.after.startswith("skip")}
    assert skipped == {worse}
    assert {c.worse for c in actual.changes if c.before.startswith("skip") and c.after.startswith("pass")} <= {None}


def test_it_is_read_at_80_columns_and_by_programs() -> None:
    before = report(gpus({f"GPU-{i}" + "0" * 36: 700.0 for i in range(3)}), row("x", "pass"))
    after = report(
        gpus({f"GPU-{i}" + "0" * 36: 500.0 for i in range(3)}), row("x", "fail", summary="w " * 99, remedy="r")
    )
    actual = compare(before, after)
    result = lines(actual)
    assert max(map(len, result)) <= 80
    assert "  gemm values.bf16 on 3 GPUs or ranks: -28.6% (threshold 5.0%)" in result
    assert result[-1].startswith("4 regressions; ")
    assert msgspec.json.decode(msgspec.json.encode(actual))["schema"] == "envcheck/comparison/1"


def test_a_speed_that_is_measured_no_more_is_a_regression() -> None:
    ranks = [{"rank": 0, "is_cuda": True, "device": "GPU-1", "values": {"bf16": 700.0, "fp8": 1300.0}}]
    both = row("gemm", "pass", unit="TFLOP/s", ranks=ranks)
    actual = compare(report(both), report(gpus({"GPU-1": 700.0})))
    [missing] = actual.regressions
    assert (missing.what, missing.gpu, missing.after, actual.exit_code) == (
        "gemm values.fp8",
        "GPU-1",
        "not measured",
        1,
    )
    assert compare(report(gpus({"GPU-1": 700.0})), report(both)).regressions == []


def collectives(latency: float, seconds: float) -> OutcomeRow:
    curves = {"all-gather": [{"bytes": s, "seconds": s * 1e-9 * seconds} for s in SIZES]}
    waits = {"all-gather": [{"bytes": b, "p50": latency * 1e-6, "p99": 1e-3 / latency} for b in (8, 1024)]}
    return row("collective-bandwidth", "pass", ranks=[{"rank": 0, "curves": curves, "latency": waits}])


@each(
    ("latency", "seconds", "worse"),
    [
        (20.0, 1.0, []),
        (24.0, 1.04, []),
        (26.0, 1.0, ["latency.all-gather.p50"]),
        (20.0, 1.1, ["curves.all-gather.seconds"]),
    ],
)
def test_each_collective_is_held_against_itself(latency: float, seconds: float, worse: list[str]) -> None:
    actual = compare(report(collectives(20.0, 1.0)), report(collectives(latency, seconds)))
    assert [c.what.split()[1] for c in actual.regressions] == worse


def test_redacted_reports_are_compared_by_pseudonym_with_a_key_and_by_order_without() -> None:
    before = load(REPORTS / "h100x8-slow-gpu.json")
    turned = structs.replace(before, snapshot=Snapshot("", before.snapshot.signals, before.snapshot.gpus[::-1]))
    keyed = compare(redact(before, "k"), redact(turned, "k"))
    assert (keyed.changes, keyed.notes) == ([], [])
    plain = compare(redact(before), redact(before))
    assert plain.changes == []
    assert ["redacted without a key" in note for note in plain.notes] == [True]


def timed(identity: str, seconds: float, planned: float, **more: Any) -> OutcomeRow:
    attempt = Attempt(status="pass", value=None, seconds=seconds, body=seconds)
    return row(identity, planned=planned, attempts=[attempt], **more)


def plan(*seconds: float, **choices: Any) -> Plan:
    checks = [planned(f"c{number}", seconds=each) for number, each in enumerate(seconds)]
    return Plan(level="quick", checks=checks, nproc=2, **choices)


@each(
    ("seconds", "message"),
    [(0.4, "<1 s"), (1.0, "1 s"), (119.4, "119 s"), (120.0, "2 min"), (605.0, "10 min 5 s"), (3600.0, "60 min")],
)
def test_durations(seconds: float, message: str) -> None:
    assert phrases.duration(seconds) == message


def test_time_taken_stands_beside_time_planned() -> None:
    rows = [timed("short", 0.2, 0.5), timed("over", 7.04, 2.0), timed("under", 0.9, 5.0)]
    rows += [timed("skipped", 0.0, 9.0), timed("left", 0.0, 9.0, left_out=True)]
    rows += [timed("not here", 0.1, 10.0, status="skip")]
    made = report(*rows, timing=Timing(planned=25.5, taken=12.06, starting=2.91))
    assert phrases.taken(made) == ("12.1 s: starting Python and torch 2.9 s; over 7.0 s (planned 2 s)")
    assert phrases.taken(structs.replace(made, timing=None)) == ""


def test_a_spread_says_how_often_what_and_from_where_to_where() -> None:
    spread = Spread(rounds=3, statuses={"pass": 2, "fail": 1}, told_in=2, smallest=0.5, median=1.0, largest=2.25)
    assert phrases.spread(timed("a", 1.0, 1.0, status="fail", unit="GB/s", spread=spread)) == (
        "2 pass, 1 fail (first in round 2)",
        "0.5 / 1 / 2.25 GB/s",
    )
    memory = Spread(rounds=1, statuses={"pass": 1}, told_in=1, smallest=1 << 20, median=1 << 21, largest=1 << 30)
    assert phrases.spread(timed("a", 1.0, 1.0, unit="B", spread=memory)) == ("1 pass", "1 MiB / 2 MiB / 1 GiB")
    assert phrases.spread(timed("a", 1.0, 1.0, spread=Spread(rounds=1, statuses={"pass": 1}, told_in=1))) == (
        "1 pass",
        "",
    )
    assert phrases.spread(timed("a", 1.0, 1.0)) == ("", "")


@each(
    ("choices", "now", "message"),
    [
        ({}, "", "0/2 done; starting Python and torch 3 s; 4 s of about 12 s in all"),
        ({}, "c1", "0/2 done; c1 3 s of about 10 s; 4 s of about 12 s in all"),
        ({"repeat": 2}, "c1", "round 1 of 2, 0/2 done; c1 3 s of about 10 s; 4 s of about 24 s in all"),
        ({"duration": 60.0}, "c1", "round 1, 0/2 done; c1 3 s of about 10 s; 4 s of about 60 s in all"),
        ({"budget": 8.0}, "c1", "0/2 done; c1 3 s of about 10 s; 4 s of about 8 s in all"),
    ],
)
def test_the_progress_line(choices: dict[str, Any], now: str, message: str) -> None:
    assert phrases.progress(plan(2.0, 10.0, **choices), 0, now, (3.0, 4.0), 1) == message


@each(
    ("choices", "message"),
    [
        ({}, "about 12 s"),
        ({"repeat": 3}, "3 times, about 36 s"),
        ({"duration": 60.0}, "again and again for 60 s"),
        ({"budget": 8.0}, "about 12 s if all; 1 expected to fit into 8 s"),
    ],
)
def test_how_long_a_plan_takes(choices: dict[str, Any], message: str) -> None:
    assert phrases.extent(plan(2.0, 10.0, **choices)) == message


@each(
    ("gpus", "least_ranks", "fitting", "message"),
    [
        (1, 1, ["x"], "10 s"),
        (1, 1, [], "left out"),
        (0, 1, ["x"], "no GPU"),
        (1, 2, ["x"], "too few"),
        (None, 2, ["x"], "10 s"),
    ],
)
def test_a_check_that_takes_no_time_here_says_why(
    gpus: int | None, least_ranks: int, fitting: list[str], message: str
) -> None:
    check = planned("x", seconds=10.0, least_ranks=least_ranks)
    assert phrases.cost(Plan(level="full", checks=[check], nproc=2, gpus=gpus), check, fitting) == message
