"""What is made of three times: a share that is told, and nothing where the times or the gradients say otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from envcheck.checks import ERROR, FAIL, PASS, SKIP, View
from envcheck.checks.env import overlap
from tests.builders import Entry, group

NAN = float("nan")


def entries(world: int = 8, *, gpu: bool = True, **seconds: float) -> list[Entry]:
    taken = {"synchronised": 0.011, "local": 0.010, "communication": 0.004, **seconds}
    measured = {"seconds": taken, "buckets": [1 << 20] * 4, "sums": [1, 2, 3], "off": [1e-7] * 6, "wrong": 0}
    measured["verified"] = dict.fromkeys(overlap.VERIFIED, 1e-7)
    digests = [{"synchronised": "same", "local": f"own{rank}"} for rank in range(world)]
    return group(lambda rank: {**measured, "digests": digests[rank]}, world, gpu=gpu)


@pytest.mark.parametrize(
    ("synchronised", "hidden"), [(0.010, 1.0), (0.011, 0.75), (0.014, 0.0), (0.020, 0.0), (0.0095, 1.0)]
)
def test_the_hidden_share_is_what_a_step_does_not_get_longer_by(h100: View, synchronised: float, hidden: float) -> None:
    outcome = overlap.judge(h100, entries(synchronised=synchronised))
    assert (outcome.status, outcome.limit) == (PASS, None)
    assert outcome.value == pytest.approx(hidden)
    assert f"{hidden:.0%} of DDP's communication is hidden" in outcome.summary
    assert "reported, not judged" in outcome.summary


@pytest.mark.parametrize(("step", "message"), [(1, "which count buckets"), (4, "which are timed")])
@pytest.mark.parametrize("value", [0.011, -1.0, NAN, None])
def test_gradients_of_every_step_are_verified(h100: View, step: int, message: str, value: Any) -> None:
    ranks = entries()
    ranks[3]["off"][step] = value
    outcome = overlap.judge(h100, ranks)
    assert (outcome.status, outcome.culprit) == (FAIL, "rank 3")
    assert message in outcome.summary
    ranks[3]["off"] = [1e-7] * 5
    assert overlap.judge(h100, ranks).status == ERROR


@pytest.mark.parametrize("name", overlap.VERIFIED)
@pytest.mark.parametrize(("gpu", "sound", "wrong"), [(True, 0.0099, 0.0101), (False, 0.000199, 0.000201)])
def test_each_part_of_the_own_gradients_is_verified(
    h100: View, cpu: View, name: str, *, gpu: bool, sound: float, wrong: float
) -> None:
    view, world = (h100, 8) if gpu else (cpu, 2)
    for value, status in ((sound, PASS), (0.0, PASS), (wrong, FAIL), (-1e-9, FAIL), (NAN, FAIL), (None, FAIL)):
        ranks = entries(world, gpu=gpu)
        ranks[1]["verified"] = {**ranks[1]["verified"], name: value}
        outcome = overlap.judge(view, ranks)
        assert outcome.status == status, (value, outcome)
        assert ("rank 1" in outcome.culprit) == (status == FAIL)


@pytest.mark.parametrize("verified", [None, {}, {"forward": 0.0}, 1, {**dict.fromkeys(overlap.VERIFIED, 0.0), "x": 0}])
def test_gradients_of_ones_own_that_were_not_verified_are_an_error(h100: View, verified: Any) -> None:
    ranks = entries()
    ranks[3]["verified"] = verified
    outcome = overlap.judge(h100, ranks)
    assert (outcome.status, outcome.code) == (ERROR, "overlap.gradients-unmeasured")


@pytest.mark.parametrize("name", overlap.TIMES)
@pytest.mark.parametrize("bad", [NAN, 0.0, -0.001, None, "1"])
def test_a_time_that_is_none_is_an_error_naming_its_rank(h100: View, name: str, bad: Any) -> None:
    ranks = entries()
    ranks[5]["seconds"][name] = bad
    outcome = overlap.judge(h100, ranks)
    assert (outcome.status, outcome.summary) == (ERROR, "rank 5 timed nothing")


def test_a_step_that_is_far_quicker_in_a_group_is_mismeasured_on_gpus_and_noise_on_a_cpu(h100: View, cpu: View) -> None:
    assert overlap.judge(h100, entries(synchronised=0.0079)).status == ERROR
    assert overlap.judge(h100, entries(synchronised=0.0081)).status == PASS
    assert overlap.judge(cpu, entries(2, gpu=False, synchronised=0.0079)).status == PASS


def test_gradients_that_were_not_sent_or_sent_too_often_say_that_something_else_was_timed(h100: View) -> None:
    ranks = entries()
    ranks[2]["digests"]["synchronised"] = "other"
    assert overlap.judge(h100, ranks).status == FAIL
    ranks = entries()
    ranks[2]["digests"]["local"] = ranks[3]["digests"]["local"]
    assert "they were sent" in overlap.judge(h100, ranks).summary
    ranks[2]["digests"] = {}
    assert overlap.judge(h100, ranks).status == ERROR


def test_ranks_that_are_missing_elsewhere_or_alone_prove_nothing(h100: View, cpu: View) -> None:
    assert overlap.judge(h100, []).status == ERROR
    assert overlap.judge(h100, entries()[:5]).status == ERROR
    assert overlap.judge(h100, entries(gpu=False)).status == FAIL
    assert overlap.judge(cpu, entries(1, gpu=False)).status == SKIP


@pytest.mark.parametrize("buckets", [None, [], [0], [NAN], ["1"], [1 << 20]])
def test_buckets_that_are_none_or_others_than_the_rest_has_are_an_error(h100: View, buckets: Any) -> None:
    ranks = entries()
    ranks[4]["buckets"] = buckets
    assert overlap.judge(h100, ranks).status == ERROR


def test_every_rank_with_a_wrong_message_is_a_finding(h100: View) -> None:
    ranks = entries()
    ranks[2]["wrong"], ranks[5]["wrong"] = 1, 7
    ranks[6]["sums"] = [1, 2, 4]
    outcome = overlap.judge(h100, ranks)
    assert (outcome.status, outcome.remeasure) == (FAIL, False)
    assert [finding.culprit for finding in outcome.findings] == ["rank 2", "rank 5", "step 2"]


@pytest.mark.parametrize("missing", [{"wrong": None}, {"wrong": -1}, {"sums": None}, {"sums": []}])
def test_messages_that_nobody_verified_are_an_error(h100: View, missing: dict[str, Any]) -> None:
    ranks = entries()
    ranks[3] |= missing
    assert overlap.judge(h100, ranks).status == ERROR
