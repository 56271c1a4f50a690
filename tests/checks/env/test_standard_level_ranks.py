"""What the groups of level standard report, judged: the truth passes, and each lie is caught by name."""

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from envcheck.checks import ERROR, FAIL, PASS, SKIP, WARN, View
from envcheck.checks.env import fingerprint, fsdp, straggler
from tests.builders import Entry, group
from tests.tables import each

NAN = float("nan")
DTYPES = ("float32", "float16", "bfloat16")
MEASURED: dict[Any, Callable[[], Entry]] = {
    fingerprint: lambda: {"model": "X", "repeats": 3, "digests": ["a", "a", "a"]},
    fsdp: lambda: {"errors": [1e-8], "gathered": [1e-8], "losses": [1.0] * fsdp.STEPS, "ended": "a", "held": 10},
    straggler: lambda: {"products": {"median": 0.001}, "joined": {"at": [10.0, 11.0, 12.0]}, "wrong": 0},
}


def entries(check: Any, world: int = 8, *, gpu: bool = True) -> list[Entry]:
    held = {"total": 10 * world} if check is fsdp else {}
    return group({**MEASURED[check](), **held}, world, gpu=gpu, capability=[9, 0] if gpu else [])


def test_a_fingerprint_names_every_rank(h100: View) -> None:
    ranks = entries(fingerprint)
    ranks[1]["digests"] = ["a", "a", "b"]
    ranks[4]["digests"] = []
    ranks[6]["digests"] = ["c", "c", "c"]
    outcome = fingerprint.judge(h100, ranks)
    assert [(finding.culprit[:6], finding.code, finding.status) for finding in outcome.findings] == [
        ("rank 1", "fingerprint.bits", FAIL),
        ("rank 6", "fingerprint.bits", FAIL),
        ("rank 4", "fingerprint.missing", ERROR),
    ]
    assert "rank 1 on GPU-1: repeats [2]" in outcome.summary
    other = entries(fingerprint)
    other[5] |= {"digests": ["b", "b", "b"], "model": "Y"}
    assert fingerprint.judge(h100, other).status == PASS


@each("digests", [[], ["a"], ["a", "a"], ["a", "a", None], ["a", "a", ""]])
def test_a_fingerprint_of_too_few_repeats_is_no_pass(h100: View, digests: list[Any]) -> None:
    ranks = entries(fingerprint)
    ranks[4]["digests"] = digests
    assert fingerprint.judge(h100, ranks).status == ERROR


@each("error, status", [(1e-5, PASS), (1.1e-5, FAIL), (NAN, FAIL), (None, FAIL)])
def test_sharded_weights_may_be_off_by_rounding(h100: View, error: float | None, status: str) -> None:
    for kind in ("errors", "gathered"):
        ranks = entries(fsdp)
        ranks[3][kind] = [1e-8, error]
        outcome = fsdp.judge(h100, ranks)
        assert (outcome.status, status == PASS or "rank 3: " in outcome.summary) == (status, True)


def test_weights_that_were_never_sharded_or_are_gathered_apart_fail(h100: View) -> None:
    ranks = entries(fsdp)
    for entry in ranks:
        entry["held"] = entry["total"]
    assert "they were not sharded" in fsdp.judge(h100, ranks).summary
    ranks = entries(fsdp)
    ranks[6]["held"] = None
    assert fsdp.judge(h100, ranks).status == FAIL
    ranks[6] |= {"held": 10, "ended": "b"}
    outcome = fsdp.judge(h100, ranks)
    assert (outcome.status, outcome.details["ranks"]) == (FAIL, [6])


def test_a_torch_without_fsdp2_is_a_skip_and_too_few_steps_are_no_pass(h100: View) -> None:
    ranks = entries(fsdp)
    ranks[1]["losses"].pop()
    assert fsdp.judge(h100, ranks).status == ERROR
    ranks = [{**entry, "unsupported": "torch 1.13 has no FSDP2"} for entry in ranks]
    assert fsdp.judge(h100, ranks).status == SKIP


@each("ratio, on_gpus", [(1.1, PASS), (1.11, WARN), (1.25, WARN), (1.251, FAIL), (2.0, FAIL), (2.01, FAIL)])
def test_a_slow_rank_is_named_on_each_side_of_the_limits(h100: View, cpu: View, ratio: float, on_gpus: str) -> None:
    for view, gpu, status in ((h100, True, on_gpus), (cpu, False, WARN if ratio > 2 else PASS)):
        ranks = entries(straggler, 8 if gpu else 2, gpu=gpu)
        ranks[1]["products"]["median"] = 0.001 * ratio
        outcome = straggler.judge(view, ranks)
        assert outcome.status == status
        assert outcome.details["ranks"] == [1]
        assert "rank 1 (" in outcome.summary
        assert outcome.details["seconds"]["1"] == max(outcome.details["seconds"].values())
        assert 0 < outcome.details["spread"] < ratio


def test_a_gpu_is_compared_with_those_of_its_own_model(h100: View) -> None:
    ranks = entries(straggler, 4)  # a rig of 5090 and 3090 (noonghunna/club-3090#761)
    for entry, seconds in zip(ranks, (0.001, 0.003, 0.001, 0.0031), strict=True):
        entry["model"], entry["products"]["median"] = "5090" if seconds == 0.001 else "3090", seconds
    sound = straggler.judge(h100, ranks)
    assert (sound.status, sound.value, "of one model" in sound.summary) == (PASS, 1.0333, True)
    ranks[3]["products"]["median"] = 0.004
    slow = straggler.judge(h100, ranks)
    assert (slow.status, slow.culprit[:6], "1.33 times" in slow.summary) == (FAIL, "rank 3", True)
    ranks[0]["model"], ranks[3]["products"]["median"] = "4090", 0.0031
    some = straggler.judge(h100, ranks).summary
    assert (some[:12], some.rpartition("; ")[2]) == ("2 ranks take", "compared with none: rank 0, 2")
    ranks[1]["model"] = "2080"
    assert straggler.judge(h100, ranks).code == "straggler.unlike"


def test_ranks_that_a_quota_holds_back_alike_are_not_compared(h100: View, cpu: View) -> None:
    for view, gpu in ((h100, True), (cpu, False)):
        ranks = entries(straggler, 2, gpu=gpu)
        ranks[1]["products"]["median"] = 0.01
        ranks[0]["throttled"] = {"quota": 0.06, "periods": 20, "throttled": 19, "share": 0.95}
        outcome = straggler.judge(view, ranks)
        held = next(one for one in outcome.findings or [outcome] if one.code == "straggler.throttled")
        assert (held.status, held.culprit, "0.06 cores" in held.summary) == (WARN, "CPU quota", True)
        # A GPU computes by itself.
        assert (outcome.code, outcome.status) == (("speed.behind", FAIL) if gpu else ("straggler.throttled", WARN))
        ranks[1]["throttled"] = "x"
        ranks[0]["throttled"]["share"] = 0.05
        assert straggler.judge(view, ranks).code == "speed.behind"


@each("seconds", [0.0, -1.0, NAN, None])
def test_a_time_that_is_none_is_no_pass(h100: View, seconds: float | None) -> None:
    ranks = entries(straggler)
    ranks[2]["products"]["median"] = seconds
    assert straggler.judge(h100, ranks).status == ERROR


@each("at", [[], None, [1.0, 2.0], [10.0, NAN, 12.0]])
def test_meetings_that_nobody_timed_are_no_pass(h100: View, at: Any) -> None:
    ranks = entries(straggler)
    ranks[2]["joined"]["at"] = at
    assert straggler.judge(h100, ranks).status == ERROR


@each("late, status", [(0.0029, PASS), (0.0031, FAIL), (0.03, FAIL)])
def test_a_gpu_s_rank_that_joins_late_is_named(h100: View, cpu: View, late: float, status: str) -> None:
    ranks = entries(straggler)
    ranks[3]["joined"]["at"] = [at + late for at in ranks[3]["joined"]["at"]]
    outcome = straggler.judge(h100, ranks)
    assert (outcome.status, outcome.remeasure) == (status, status == FAIL)
    if status == FAIL:
        assert "rank 3 (GPU-3 of node1) joins collectives" in outcome.summary
    here = entries(straggler, 2, gpu=False)
    here[1]["joined"]["at"] = [at + late for at in here[1]["joined"]["at"]]
    assert straggler.judge(cpu, here).status == (WARN if late > 0.015 else PASS)


def test_every_slow_rank_is_a_finding(h100: View) -> None:
    ranks = entries(straggler)
    ranks[5]["products"]["median"] = 0.002
    ranks[6]["joined"]["at"] = [10.01, 11.01, 12.01]
    ranks[7]["joined"]["own"] = 0.02
    outcome = straggler.judge(h100, ranks)
    assert [finding.culprit[:6] for finding in outcome.findings] == ["rank 5", "rank 6", "rank 7"]
    assert {finding.status for finding in outcome.findings} == {FAIL}


def test_a_wrong_sum_is_final(cpu: View) -> None:
    ranks = entries(straggler, 2, gpu=False)
    ranks[1]["wrong"] = 1
    outcome = straggler.judge(cpu, ranks)
    assert (outcome.status, outcome.remeasure, outcome.culprit[:6]) == (FAIL, False, "rank 1")


def test_the_fsdp2_of_an_old_torch_is_not_tried_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "torch.distributed", "torch.distributed.fsdp"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    vars(sys.modules["torch.distributed.fsdp"])["fully_shard"] = object()
    for version, lacks in (("2.5.1", True), ("2.8.0+cu128", True), ("2.9.0", False)):
        torch = types.SimpleNamespace(__version__=version)
        actual, why = fsdp._fully_shard(torch, "cpu")  # noqa: SLF001 (no old torch here)
        assert (actual is None, "for GPUs alone" in str(why)) == (lacks, lacks)
        assert fsdp._fully_shard(torch, "cuda")[0] is not None  # noqa: SLF001 (as above)
