"""Minutes of load, judged: speed kept, bits kept, faults and caps named, and too few samples never a pass."""

from typing import Any

import pytest

from envcheck.checks import ERROR, FAIL, PASS, WARN, View
from envcheck.checks.env import sustained_gemm, training_load
from envcheck.node.snapshot import Signal
from tests.builders import H100, Entry, group
from tests.tables import each

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


GIB = 1 << 30
TRAINED = {"clock": 1900, "power": 600.0, "temperature": 60, "reasons": [], "utilization": 98}
TOLD = {
    "steps_per_second": 180.0,
    "lasted": 5.0,
    "interval": 0.25,
    "losses": [1.02, 0.97],
    "weights": "1f 2e",
    "peak": 3 * GIB,
    "total": 80 * GIB,
    "load": {"samples": [TRAINED] * 19, "unread": None, "not_offered": {}},
}


def trained(view: View, **changes: Any) -> list[Entry]:
    return group({**TOLD, **changes}, view=view)


def test_a_training_is_told_and_not_judged(h100: View) -> None:
    ranks = trained(h100)
    ranks[2]["load"]["samples"] = [{**TRAINED, "utilization": 40}] * 19
    ranks[3]["peak"] = 70 * GIB
    ranks[4]["load"]["samples"] = [{**TRAINED, "power": 699.0}] * 19
    outcome = training_load.judge(h100, ranks)
    assert (outcome.status, outcome.value, outcome.unit, outcome.limit) == (PASS, 8192 * 180.0, "tokens/s", None)
    for message in (
        "1474560 tokens/s and 322 TFLOP/s a GPU",
        "utilisation 40 % at least",
        "70.0 of 80.0 GiB at most",
        "power up to 699 W",
        "not judged",
    ):
        assert message in outcome.summary
    assert outcome.details["gpus"]["3"]["headroom"] == 10 * GIB
    assert outcome.details["gpus"]["0"]["steps_per_second"] == 180.0


@each("reason", ["hardware slowdown", "hardware thermal slowdown", "power brake"])
def test_a_gpu_that_slows_itself_down_is_named(h100: View, reason: str) -> None:
    ranks = trained(h100)
    ranks[6]["load"]["samples"] = [*ranks[6]["load"]["samples"], {**TRAINED, "reasons": [reason]}]
    outcome = training_load.judge(h100, ranks)
    assert outcome.status == WARN
    assert f"rank 6 on {h100.snapshot.gpus[6].uuid}: {reason}" in outcome.summary
    assert outcome.remedy


@each(
    "change",
    [
        *({"load": {"samples": [TRAINED] * 9, "unread": None}}, {"load": {}}, {"load": None}, {"peak": 80 * GIB + 1}),
        {"load": {"unread": "NVML: GPU is lost", "samples": [TRAINED] * 19}},
        *(
            {name: value}
            for name in ("steps_per_second", "lasted", "peak", "total")
            for value in (0, -1, None, NAN, "5", True)
        ),
    ],
)
def test_what_nobody_watched_or_measured_is_an_error(h100: View, change: Entry) -> None:
    assert training_load.judge(h100, trained(h100, **change)).status == ERROR


@each(
    "losses, status",
    [([1.0, NAN], FAIL), ([None, 1.0], FAIL), ([], ERROR), (None, ERROR), ([1.0], ERROR), ([1.0, 1.0], ERROR)],
)
def test_a_loss_that_is_none_never_passes(h100: View, losses: Any, status: str) -> None:
    assert training_load.judge(h100, trained(h100, losses=losses)).status == status
    assert training_load.judge(h100, []).status == ERROR


def test_a_slice_that_tells_neither_utilisation_nor_power_passes_and_says_so(h100: View) -> None:
    quiet = {"samples": [{"at": 0.3}] * 19, "unread": None, "not_offered": {"utilization": "NVML: Not Supported"}}
    outcome = training_load.judge(h100, trained(h100, load=quiet))
    assert outcome.status == PASS
    assert "utilisation not reported by this GPU" in outcome.summary


@each(
    "alone, links, status, words",
    [
        (211.0, 18, PASS, "85% of the speed of each by itself"),
        (213.0, 18, WARN, "8 GPUs keep 85% of their own speed"),
        (400.0, 0, PASS, "45% of the speed of each by itself"),
        (None, 18, PASS, "GPU, utilisation"),
        (NAN, 18, PASS, "GPU, utilisation"),
    ],
)
def test_gpus_behind_nvlink_keep_their_speed_when_they_train_together(
    h100: View, alone: Any, links: int, status: str, words: str
) -> None:
    for gpu in h100.snapshot.gpus:
        gpu.signals["nvlinks_active"] = Signal(links)
    outcome = training_load.judge(h100, [entry | {"alone": alone} for entry in trained(h100)])
    assert (outcome.status, words in outcome.summary) == (status, True), outcome.summary
    assert (outcome.code, outcome.value) == ("training.scaling", 0.845) or status == PASS


def test_gpus_bridged_in_pairs_or_of_several_hosts_need_not_keep_their_speed(h100: View) -> None:
    for gpu in h100.snapshot.gpus:
        gpu.signals["nvlinks_active"] = Signal(18)
    ranks = [entry | {"alone": 400.0} for entry in trained(h100)]
    assert training_load.judge(h100, ranks).status == WARN
    assert training_load.judge(h100, [*ranks[:-1], ranks[-1] | {"host": "another"}]).status == PASS
    for gpu in h100.snapshot.gpus:
        gpu.signals["name"] = Signal("NVIDIA H100 NVL")
    assert training_load.judge(h100, ranks).status == PASS


@each("weights, status", [("1f 2f", FAIL), ("", ERROR), (None, ERROR)])
def test_replicas_with_other_weights_fail(h100: View, weights: Any, status: str) -> None:
    ranks = trained(h100)
    ranks[5]["weights"] = weights
    outcome = training_load.judge(h100, ranks)
    assert outcome.status == status
    assert status == ERROR or "on rank 5" in outcome.summary
    # Another model of GPU may round otherwise.
    ranks[5]["name"] = "another"
    assert training_load.judge(h100, ranks).status == (PASS if status == FAIL else ERROR)


def test_every_gpu_with_a_fault_is_a_finding(h100: View) -> None:
    ranks = trained(h100)
    for rank in (2, 6):
        ranks[rank]["load"]["samples"] = [{**TRAINED, "reasons": ["power brake"]}] * 19
    ranks[4]["losses"] = [1.0, NAN]
    outcome = training_load.judge(h100, ranks)
    assert (outcome.status, len(outcome.findings)) == (FAIL, 3)
    assert [finding.status for finding in outcome.findings] == [FAIL, WARN, WARN]
    assert all(finding.code and finding.culprit for finding in outcome.findings)
