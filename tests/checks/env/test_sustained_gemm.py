"""Minutes of load, judged: speed kept, bits kept, faults and caps named, and too few samples never a pass."""

from collections.abc import Callable
from typing import Any

import pytest

from envcheck.checks import ERROR, FAIL, PASS, WARN, View
from envcheck.checks.env import sustained_gemm
from tests.builders import H100, Entry, group
from tests.tables import each

Node = Callable[..., View]
NAN = float("nan")
SAMPLE = {"clock": 1700, "power": 690.0, "temperature": 65, "reasons": ["software power cap"], "utilization": 100}


def entries(view: View, **changes: Any) -> list[Entry]:
    points = [{"at": float(at), "tflops": 700.0, "wrong": 0} for at in range(65)]
    load: Entry = {"samples": [{"at": float(at), **SAMPLE} for at in range(64)], "unread": None, "not_offered": {}}
    measured = {"name": H100, "dtype": "bfloat16", "interval": 1.0, "error": 1e-3, "points": points, "load": load}
    return group({**measured, **changes}, view=view, backend=None)


def test_speed_kept_passes_with_what_the_gpu_went_through(h100: View) -> None:
    outcome = sustained_gemm.judge(h100, entries(h100))
    assert outcome.status == PASS
    assert outcome.value == 1.0
    for message in ("8 GPUs, bfloat16: 700 TFLOP/s", "1700 to 1700 MHz", "690 W", "up to 65 C", "at its power limit"):
        assert message in outcome.summary


@each("share, status", [(0.951, PASS), (0.949, WARN), (0.901, WARN), (0.899, FAIL), (0.01, FAIL)])
def test_speed_lost_under_way_names_the_gpu(h100: View, share: float, status: str) -> None:
    ranks = entries(h100)
    for entry in ranks:
        for point in entry["points"][40:]:
            point["tflops"] *= share if entry["rank"] == 3 else 1
    outcome = sustained_gemm.judge(h100, ranks)
    assert outcome.status == status
    assert outcome.value == pytest.approx(share)
    if status != PASS:
        assert f"rank 3 on {h100.snapshot.gpus[3].uuid}" in outcome.summary
        assert outcome.remedy
        assert outcome.limit is not None


def test_what_a_cold_gpu_does_better_is_no_loss(h100: View) -> None:
    ranks = entries(h100)
    for entry in ranks:
        for point in entry["points"][:8]:
            point["tflops"] = 900.0
    assert sustained_gemm.judge(h100, ranks).status == PASS


@each("first, then, status", [(750.0, 350.0, FAIL), (950.0, 700.0, WARN), (930.0, 700.0, PASS), (360.0, 350.0, FAIL)])
def test_a_fall_in_the_first_seconds_and_a_speed_below_the_model_s_floor_are_findings(
    h100: View, first: float, then: float, status: str
) -> None:
    ranks = entries(h100)
    for entry in (ranks[2], ranks[4]):
        for index, point in enumerate(entry["points"]):
            point["tflops"] = first if index < 3 else then
    outcome = sustained_gemm.judge(h100, ranks)
    assert outcome.status == status
    if status != PASS:
        assert [finding.culprit[:6] for finding in outcome.findings] == ["rank 2", "rank 4"]
        assert f"{then:.4g} TFLOP/s at the end, {first:.4g} in its best second" in outcome.summary
        assert "at its power limit" in outcome.summary


def test_a_gpu_that_is_behind_all_along_is_named(h100: View) -> None:
    ranks = entries(h100)
    for point in ranks[5]["points"]:
        point["tflops"] *= 0.89
    outcome = sustained_gemm.judge(h100, ranks)
    assert (outcome.status, outcome.details["rank"]) == (WARN, 5)


@each("reason", ["hardware slowdown", "software thermal slowdown", "hardware thermal slowdown", "power brake"])
def test_each_fault_among_the_reasons_fails(h100: View, reason: str) -> None:
    ranks = entries(h100)
    ranks[6]["load"]["samples"][30]["reasons"] = [reason]
    outcome = sustained_gemm.judge(h100, ranks)
    assert outcome.status == FAIL
    assert f"rank 6 on {h100.snapshot.gpus[6].uuid}: {reason} in 1 of 64 samples" in outcome.summary


@each(
    "reason, message",
    [("applications clocks", "clocks that somebody set"), ("software power cap", "at its power limit"), ("idle", "")],
)
def test_a_cap_is_named_and_is_no_fault(h100: View, reason: str, message: str) -> None:
    ranks = entries(h100)
    for entry in ranks:
        for sample in entry["load"]["samples"]:
            sample["reasons"] = [reason]
    outcome = sustained_gemm.judge(h100, ranks)
    assert outcome.status == PASS
    assert message in outcome.summary


@each("error, status", [(0.0101, FAIL), (NAN, FAIL), (-0.1, FAIL), (None, ERROR)])
def test_a_reference_that_is_no_product_never_passes(h100: View, error: Any, status: str) -> None:
    ranks = entries(h100)
    ranks[4]["error"] = error
    outcome = sustained_gemm.judge(h100, ranks)
    assert (outcome.status, outcome.culprit[:6]) == (status, "rank 4")
    assert "bfloat16 product" in outcome.summary


@each("wrong", [1, None, NAN, "0"])
def test_other_bits_fail_naming_when(h100: View, wrong: Any) -> None:
    ranks = entries(h100)
    ranks[2]["points"][50]["wrong"] = wrong
    outcome = sustained_gemm.judge(h100, ranks)
    assert outcome.status == FAIL
    assert "rank 2 on" in outcome.summary
    assert "after 50 s under load" in outcome.summary


@each("samples, status", [(32, PASS), (31, ERROR), (0, ERROR)])
def test_samples_that_are_missing_are_an_error(h100: View, samples: int, status: str) -> None:
    ranks = entries(h100)
    del ranks[7]["load"]["samples"][samples:]
    assert sustained_gemm.judge(h100, ranks).status == status


@each(
    "change",
    [
        *({"load": load} for load in ({"unread": "NVML: GPU is lost", "samples": []}, {}, None)),
        *({"points": points} for points in ([], None, [{"at": 1.0, "tflops": 700.0, "wrong": 0}] * 5)),
        *(
            {"points": [{"at": float(at), "tflops": tflops, "wrong": 0} for at in range(65)]}
            for tflops in (NAN, 0.0, -1.0, None, float("inf"), "700")
        ),
    ],
)
def test_a_load_that_nobody_watched_or_measured_is_an_error(h100: View, change: Entry) -> None:
    assert sustained_gemm.judge(h100, entries(h100, **change)).status == ERROR


def test_what_a_gpu_never_tells_is_said_and_no_fault(h100: View) -> None:
    quiet = {"samples": [{"at": float(at)} for at in range(64)], "unread": None, "not_offered": {"power": "no"}}
    outcome = sustained_gemm.judge(h100, entries(h100, load=quiet))
    assert outcome.status == PASS
    assert "not reported by this GPU: power" in outcome.summary
