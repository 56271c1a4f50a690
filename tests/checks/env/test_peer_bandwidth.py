"""Pairs of GPUs judged by measurements made by hand: no GPU was there."""

from typing import Any

import pytest

from envcheck.checks import ERROR, FAIL, PASS, SKIP, WARN, View, limits
from envcheck.checks.env import peer_bandwidth, peer_to_peer
from envcheck.checks.support import gpu_speed
from tests.builders import H100, Entry, gpu_view, group, put, put_gpu

SWITCHED = {"nvlink_remotes": ["switch"] * 18}
ROW = limits.find("peer-bandwidth", gpu=H100, transport="nvswitch") or {}


@pytest.fixture
def named() -> tuple[View, list[str]]:
    """Return eight H100s on switches, and the first three by the names that the measurement gives them."""
    view = put_gpu(gpu_view("h100x8"), range(8), **SWITCHED)
    return view, [f"GPU {index} ({gpu.uuid})" for index, gpu in enumerate(view.snapshot.gpus[:3])]


def rates(names: list[str], rate: float | None, odd: Any = "", model: str = H100) -> Entry:
    """Return what was measured of these GPUs: the same of each pair, but for the one from GPU 2 to GPU 1."""
    matrix: list[list[Any]] = [[None if i == j else rate for j in range(3)] for i in range(3)]
    matrix[2][1] = rate if odd == "" else odd
    measured = {"gpus": names, "models": [model] * 3, "bytes": 1 << 29, "matrix": matrix, "wrong": []}
    return group(measured, 1, backend=None)[0]


def test_each_pair_is_judged_on_both_sides_of_each_limit(named: tuple[View, list[str]]) -> None:
    view, names = named
    for rate, status in (
        (ROW["warn"], PASS),
        (ROW["warn"] - 1, WARN),
        (ROW["fail"], WARN),
        (ROW["fail"] - 1, FAIL),
        (ROW["ceiling"], PASS),
        (ROW["ceiling"] + 1, ERROR),
    ):
        outcome = peer_bandwidth.judge(view, [rates(names, 376.0, rate)])
        assert outcome.status == status, (rate, outcome)
        if status in (WARN, FAIL):
            assert f"{names[2]} -> {names[1]}" in outcome.summary
            assert outcome.details["gpus"] == [gpu_speed.uuid(names[2]), gpu_speed.uuid(names[1])]
            assert outcome.details["matrix"][2][1] == rate
            assert (outcome.limit is not None, bool(outcome.remedy)) == (True, True)


def test_every_pair_whose_copies_brought_other_bits_is_a_final_finding(named: tuple[View, list[str]]) -> None:
    view, names = named
    wrong = [{"source": 0, "target": end, "messages": 7, "wrong": 1, "first": 3} for end in (1, 2)]
    outcome = peer_bandwidth.judge(view, [{**rates(names, 376.0, ROW["fail"] - 1), "wrong": wrong}])
    assert (outcome.status, outcome.remeasure) == (FAIL, False)
    ends = [f"{names[0]} -> {names[1]}", f"{names[0]} -> {names[2]}", f"{names[2]} -> {names[1]}"]
    assert [finding.culprit for finding in outcome.findings] == ends


@pytest.mark.parametrize("odd", [0.0, -1.0, float("nan"), "fast"])
def test_what_is_no_rate_never_passes(named: tuple[View, list[str]], odd: Any) -> None:
    assert peer_bandwidth.judge(named[0], [rates(named[1], 380.0, odd)]).status == ERROR


def test_a_pair_without_peer_access_is_left_out_and_none_at_all_is_a_skip(named: tuple[View, list[str]]) -> None:
    view, names = named
    assert peer_bandwidth.judge(view, [rates(names, 376.0, None)]).status == PASS
    assert peer_bandwidth.judge(view, [rates(names, None)]).status == SKIP
    assert peer_bandwidth.judge(view, [{**rates(names, 380.0), "matrix": [[None]]}]).status == ERROR
    assert peer_bandwidth.judge(view, group({}, 1, backend=None)).status == ERROR
    assert peer_bandwidth.judge(view, [{**rates(names, 380.0), "wrong": None}]).status == ERROR
    assert peer_bandwidth.judge(view, group({"off": True}, 1, backend=None)).status == SKIP


def test_what_has_no_known_limit_is_reported_and_never_fails(named: tuple[View, list[str]]) -> None:
    view, names = named
    slow = rates(names, 9.0)
    for other in (
        gpu_view("h100x8"),  # nothing says that these hang on switches
        put_gpu(view, range(8), nvlinks_active=12, nvlink_speed=None),
        put_gpu(view, range(8), nvlink_remotes=["gpu"] * 18),
    ):
        outcome = peer_bandwidth.judge(other, [slow])
        assert (outcome.status, outcome.value, "no limit known" in outcome.summary) == (PASS, 9.0, True)


def test_a_pair_over_switches_without_a_row_is_warned_of_far_below_what_its_links_carry(
    named: tuple[View, list[str]],
) -> None:
    fewer = put_gpu(named[0], range(8), nvlinks_active=12, nvlink_speed=25000.0)  # by design in some clouds
    whole = put_gpu(named[0], range(8), nvlinks_active=18, nvlink_speed=25000.0)
    for view, model, rate, status in (
        (fewer, H100, 105.0, PASS),  # 0.35 of 12 links of 25 GB/s
        (fewer, H100, 104.0, WARN),
        (fewer, H100, 451.0, ERROR),
        (whole, "NVIDIA H20", 157.0, WARN),
        (whole, "NVIDIA H20", 158.0, PASS),
    ):
        outcome = peer_bandwidth.judge(view, [rates(named[1], 160.0, rate, model)])
        assert outcome.status == status, (rate, outcome)


def probe(*wrong: Any, **entry: Any) -> list[Entry]:
    """Return what the probe of two GPUs told of the two directions."""
    pairs = [{"source": i, "target": 1 - i, **actual} for i, actual in enumerate(wrong)]
    return group({"gpus": ["GPU 0 (GPU-0)", "GPU 1 (GPU-1)"], "pairs": pairs, **entry}, 1, backend=None)


def test_gpus_that_cannot_reach_each_other_are_a_skip_and_what_was_not_tried_is_no_pass() -> None:
    view, apart = gpu_view("h100x8"), {"unreachable": "CUDA offers no peer access"}
    assert peer_to_peer.judge(view, probe(apart, apart)).status == SKIP
    one = peer_to_peer.judge(view, probe(apart, {"wrong": {}}))
    assert (one.status, "out of reach of each other: 1 pair" in one.summary) == (PASS, True)
    for nothing in (probe(), probe({"wrong": {}}), probe({}, {}), probe({"wrong": {}}, {"wrong": {}}, gpus=[])):
        assert peer_to_peer.judge(view, nothing).status == ERROR
    assert peer_to_peer.judge(view, probe({"wrong": {}}, {"wrong": {}}, is_cuda=False, device="cpu")).status == FAIL


def test_the_link_between_two_gpus_is_what_nvml_says_of_the_pair(named: tuple[View, list[str]]) -> None:
    switched, plain = named[0], gpu_view("h100x8")
    a, b = (gpu.uuid for gpu in plain.snapshot.gpus[:2])
    pair = {"a": 0, "b": 1, "read": "ok", "write": "ok", "nvlink": "not supported", "path": "PXB"}
    assert gpu_speed.link(switched, a, b) == "nvswitch"
    assert gpu_speed.link(put(plain, gpu__p2p=[pair]), b, a) == "PXB"
    assert gpu_speed.link(put(plain, gpu__p2p=[{**pair, "nvlink": "ok"}]), a, b) == "nvlink"
    assert [gpu_speed.link(plain, a, b), gpu_speed.link(switched, a, "GPU-else")] == ["", ""]
    assert [gpu_speed.links_up(plain, a, b), gpu_speed.links_up(plain, "GPU-else")] == [18, 0]
