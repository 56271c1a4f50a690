"""Speeds of collectives, and what hides them, measured by real ranks of a real torch: once honest, once sabotaged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Outcomes = Callable[[str], dict[str, Any]]
HONEST = ("all-reduce-bandwidth", "collective-bandwidth", "overlap")
LIES = {
    "chunks-swapped": ("fail", "rank 1: what all-to-all delivered is wrong"),
    "broadcast-flips-a-bit": ("fail", "rank 1: what broadcast delivered is wrong"),
    "bandwidth-without-time": ("error", "a time was zero or no number"),
    "bandwidth-elsewhere": ("fail", "rank 1 computed on GPU-1, not on the CPU"),
    "overlap-sends-always": ("fail", "under no_sync two ranks have the same gradients"),
    "overlap-counts-wrong-gradients": ("fail", "gradients are not the mean of the ranks', first in those which count"),
    "overlap-computes-wrong": ("fail", "gradients are wrong without any communication: forward off by 0.00"),
    "overlap-swaps-blocks": ("fail", "elements of DDP's all-reduces without backward are not the sum of the ranks'"),
    "transport-repeats-a-block": ("fail", "rank 1: a message from rank 0"),
    "overlap-without-time": ("error", "rank 1 timed nothing"),
    "overlap-elsewhere": ("fail", "rank 0 computed on GPU-0, not on the CPU"),
}


@pytest.mark.torch
@pytest.mark.parametrize("check", HONEST)
def test_honest_ranks_report_what_they_measured_and_are_not_judged_on_a_cpu(outcomes: Outcomes, check: str) -> None:
    found = outcomes(check)
    assert (found["status"], found["limit"]) == ("pass", None), found
    assert "over gloo" in found["summary"]
    assert "reported, not judged" in found["summary"]
    assert 0 <= found["value"] < 1000


@pytest.mark.torch
def test_every_collective_has_its_curve_its_latency_and_the_seconds_of_each_rank(outcomes: Outcomes) -> None:
    details = outcomes("collective-bandwidth")["details"]
    assert {"all-gather", "reduce-scatter", "all-to-all", "broadcast", "send/recv"} == {*details["curves"]}
    for name, curve in details["curves"].items():
        assert [point["bytes"] for point in curve] == [1 << 20, 1 << 22, 1 << 24], name
        assert all(len(point["rank_seconds"]) == 2 and point["busbw"] > 0 for point in curve), name
        assert [at["bytes"] for at in details["latency"][name]] == [8, 512, 4096, 32768]
        assert all(0 < at["p50"] <= at["p99"] for at in details["latency"][name])
    [*one] = outcomes("all-reduce-bandwidth")["details"]["curve"]
    assert all(point["busbw"] == pytest.approx(point["algbw"]) for point in one)


@pytest.mark.torch
def test_ddp_tells_in_which_buckets_it_sends_and_what_a_step_takes(outcomes: Outcomes) -> None:
    details = outcomes("overlap")["details"]
    assert len(details["buckets"]) > 1
    assert sum(details["buckets"]) == 6 * 512 * 512
    assert set(details["seconds"]) == {"synchronised", "local", "communication"}


@pytest.mark.torch
@pytest.mark.parametrize("lie", LIES)
def test_each_lie_is_told_and_names_its_culprit(outcomes: Outcomes, lie: str) -> None:
    status, said = LIES[lie]
    assert outcomes(lie)["status"] == status, outcomes(lie)
    assert said in outcomes(lie)["summary"]
    assert outcomes(lie)["remedy"]
