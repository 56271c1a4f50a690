"""What a training took of each GPU, told; heat, idleness and numbers that cannot be are not passed over."""

from collections.abc import Callable
from typing import Any

from envcheck.checks import ERROR, FAIL, PASS, WARN, View
from envcheck.checks.env import training_load
from envcheck.node.snapshot import Signal
from tests.builders import Entry, group
from tests.tables import each

Node = Callable[..., View]
NAN = float("nan")
GIB = 1 << 30
SAMPLE = {"clock": 1900, "power": 600.0, "temperature": 60, "reasons": [], "utilization": 98}
TOLD = {
    "steps_per_second": 180.0,
    "lasted": 5.0,
    "interval": 0.25,
    "losses": [1.02, 0.97],
    "weights": "1f 2e",
    "peak": 3 * GIB,
    "total": 80 * GIB,
    "load": {"samples": [SAMPLE] * 19, "unread": None, "not_offered": {}},
}


def entries(view: View, **changes: Any) -> list[Entry]:
    return group({**TOLD, **changes}, view=view)


def test_a_training_is_told_and_not_judged(h100: View) -> None:
    ranks = entries(h100)
    ranks[2]["load"]["samples"] = [{**SAMPLE, "utilization": 40}] * 19
    ranks[3]["peak"] = 70 * GIB
    ranks[4]["load"]["samples"] = [{**SAMPLE, "power": 699.0}] * 19
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
    ranks = entries(h100)
    ranks[6]["load"]["samples"] = [*ranks[6]["load"]["samples"], {**SAMPLE, "reasons": [reason]}]
    outcome = training_load.judge(h100, ranks)
    assert outcome.status == WARN
    assert f"rank 6 on {h100.snapshot.gpus[6].uuid}: {reason}" in outcome.summary
    assert outcome.remedy


@each("busy, status", [(0, ERROR), (1, PASS)])
def test_a_gpu_that_was_idle_all_the_while_did_not_train(h100: View, busy: int, status: str) -> None:
    ranks = entries(h100)
    ranks[1]["load"]["samples"] = [{**SAMPLE, "utilization": 0}] * 18 + [{**SAMPLE, "utilization": busy}]
    assert training_load.judge(h100, ranks).status == status


@each(
    "change",
    [
        *({"load": {"samples": [SAMPLE] * 9, "unread": None}}, {"load": {}}, {"load": None}, {"peak": 80 * GIB + 1}),
        {"load": {"unread": "NVML: GPU is lost", "samples": [SAMPLE] * 19}},
        *(
            {name: value}
            for name in ("steps_per_second", "lasted", "peak", "total")
            for value in (0, -1, None, NAN, "5", True)
        ),
    ],
)
def test_what_nobody_watched_or_measured_is_an_error(h100: View, change: Entry) -> None:
    assert training_load.judge(h100, entries(h100, **change)).status == ERROR


@each(
    "losses, status",
    [([1.0, NAN], FAIL), ([None, 1.0], FAIL), ([], ERROR), (None, ERROR), ([1.0], ERROR), ([1.0, 1.0], ERROR)],
)
def test_a_loss_that_is_none_never_passes(h100: View, losses: Any, status: str) -> None:
    assert training_load.judge(h100, entries(h100, losses=losses)).status == status
    assert training_load.judge(h100, []).status == ERROR


def test_a_slice_that_tells_neither_utilisation_nor_power_passes_and_says_so(h100: View) -> None:
    quiet = {"samples": [{"at": 0.3}] * 19, "unread": None, "not_offered": {"utilization": "NVML: Not Supported"}}
    outcome = training_load.judge(h100, entries(h100, load=quiet))
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
    outcome = training_load.judge(h100, [entry | {"alone": alone} for entry in entries(h100)])
    assert (outcome.status, words in outcome.summary) == (status, True), outcome.summary
    assert (outcome.code, outcome.value) == ("training.scaling", 0.845) or status == PASS


def test_gpus_bridged_in_pairs_or_of_several_hosts_need_not_keep_their_speed(h100: View) -> None:
    for gpu in h100.snapshot.gpus:
        gpu.signals["nvlinks_active"] = Signal(18)
    ranks = [entry | {"alone": 400.0} for entry in entries(h100)]
    assert training_load.judge(h100, ranks).status == WARN
    assert training_load.judge(h100, [*ranks[:-1], ranks[-1] | {"host": "another"}]).status == PASS
    for gpu in h100.snapshot.gpus:
        gpu.signals["name"] = Signal("NVIDIA H100 NVL")
    assert training_load.judge(h100, ranks).status == PASS


@each("weights, status", [("1f 2f", FAIL), ("", ERROR), (None, ERROR)])
def test_replicas_with_other_weights_fail(h100: View, weights: Any, status: str) -> None:
    ranks = entries(h100)
    ranks[5]["weights"] = weights
    outcome = training_load.judge(h100, ranks)
    assert outcome.status == status
    assert status == ERROR or "on rank 5" in outcome.summary
    # Another model of GPU may round otherwise.
    ranks[5]["name"] = "another"
    assert training_load.judge(h100, ranks).status == (PASS if status == FAIL else ERROR)


def test_every_gpu_with_a_fault_is_a_finding(h100: View) -> None:
    ranks = entries(h100)
    for rank in (2, 6):
        ranks[rank]["load"]["samples"] = [{**SAMPLE, "reasons": ["power brake"]}] * 19
    ranks[4]["losses"] = [1.0, NAN]
    outcome = training_load.judge(h100, ranks)
    assert (outcome.status, len(outcome.findings)) == (FAIL, 3)
    assert [finding.status for finding in outcome.findings] == [FAIL, WARN, WARN]
    assert all(finding.code and finding.culprit for finding in outcome.findings)
