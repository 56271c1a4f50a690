"""Curves of every collective, judged on each side of each limit; what was sent and has to arrive, by arithmetic."""

import itertools
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from envcheck.checks import ERROR, FAIL, PASS, SKIP, WARN, View
from envcheck.checks.collectives import bandwidth_curves, timed_collectives
from envcheck.checks.env import collective_bandwidth
from tests.builders import Entry, gpu_view, group, put_gpu
from tests.tables import each

NAN = float("nan")
SLOW = {"rest": 15.0}
NAMES = tuple(collective_bandwidth.ROWS)


def curve(name: str, busbw: float, world: int, sizes: list[int] | None = None) -> list[dict[str, Any]]:
    factor = 1.0 if name in ("broadcast", "send/recv") else (world - 1) / world
    sizes = sizes or timed_collectives.SIZES["cuda"]
    return [{"bytes": size, "seconds": size * factor / busbw / 1e9, "right": True} for size in sizes]


def entries(world: int, rates: Mapping[str, float], *, gpu: bool = True) -> list[Entry]:
    measured = {
        "curves": {name: curve(name, rates.get(name, rates["rest"]), world) for name in NAMES},
        "latency": {name: [{"bytes": 8, "p50": 1e-5, "p99": 3e-5}] for name in NAMES},
        "unsupported": {},
    }
    return group(measured, world, gpu=gpu)


@each("name", ["all-reduce", *NAMES])
def test_bus_bandwidth_by_its_formula(name: str) -> None:
    expected = {"all-reduce": 175.0, "broadcast": 100.0, "send/recv": 100.0}.get(name, 87.5)
    assert bandwidth_curves.busbw(name, 1e9, 0.01, 8) == pytest.approx(expected)


@each("world, name", itertools.product([2, 3, 8, 40], ["all-reduce", *NAMES]))
def test_what_has_to_arrive_is_what_was_sent(name: str, world: int) -> None:
    sent = [timed_collectives.parts(name, rank, world).sent for rank in range(world)]
    blocks = range(world)
    summed = [(world, sum(one[block] for one in sent)) for block in blocks] if name != "all-gather" else []
    arriving: dict[str, Callable[[int], list[tuple[int, int]]]] = {
        "all-reduce": lambda _: summed,
        "all-gather": lambda _: [(1, one[0]) for one in sent],
        "reduce-scatter": lambda rank: [summed[rank]],
        "all-to-all": lambda rank: [(1, one[rank]) for one in sent],
        "broadcast": lambda _: [(1, tag) for tag in sent[0]],
        "send/recv": lambda rank: [(1, tag) for tag in sent[(rank - 1) % world]],
    }
    for rank in range(world):
        assert timed_collectives.parts(name, rank, world).got == arriving[name](rank)
    if name in ("all-reduce", "reduce-scatter", "all-to-all"):
        # Blocks that were swapped, or came from another rank, do not look alike.
        assert len({tag for one in sent for tag in one}) == min(world * world, (1 << 13) // world)
    # fp32 counts exactly to 2^24.
    assert max(count * 1020 + tags * 1024 for count, tags in arriving[name](0)) < 1 << 24


@each(
    "name, gpu, fail, warn, ceiling, below",
    [
        ("all-gather", "h100x8", 290, 330, 450, FAIL),
        ("reduce-scatter", "h100x8", 290, 330, 450, FAIL),
        # One public source each: unverified limits, which only warn.
        ("broadcast", "h100x8", 290, 330, 450, WARN),
        ("send/recv", "a100x8", 152, 173, 300, WARN),
    ],
)
def test_each_collective_on_each_side_of_its_own_limits(
    name: str, gpu: str, fail: float, warn: float, ceiling: float, below: str
) -> None:
    fine = {"rest": 340.0 if gpu == "h100x8" else 190.0}
    for rate, status in (
        (fail - 0.1, below),
        (fail + 0.1, WARN),
        (warn - 0.1, WARN),
        (warn + 0.1, PASS),
        (ceiling - 0.1, PASS),
        (ceiling + 0.1, ERROR),
        (NAN, ERROR),
        (-5.0, ERROR),
    ):
        outcome = collective_bandwidth.judge(gpu_view(gpu), entries(8, {**fine, name: rate}))
        assert outcome.status == status, (rate, outcome.summary)
        if status in (WARN, FAIL):
            assert outcome.limit is not None
            assert outcome.summary.startswith(name)


def test_over_switches_what_has_no_row_is_warned_of_far_below_its_links() -> None:
    nvls = {"available": True, "used": True, "trouble": None}
    log = {"lines": 90, "version": "2.27.3", "network": "Socket", "nvls": nvls, "algorithms": {}, "settings": {}}
    for name in NAMES:
        ranks = entries(3, {"rest": 200.0, name: 150.0})
        for rank, entry in enumerate(ranks):
            edges = {f"{rank}>{(rank + 1) % 3}": ["P2P/CUMEM"]}
            entry["nccl"] = {**log, "edges": edges}
        outcome = collective_bandwidth.judge(gpu_view("h100x8"), ranks)
        assert outcome.status == (PASS if name == "all-to-all" else WARN), (name, outcome)


def test_the_slowest_collective_is_the_value_and_every_curve_is_told() -> None:
    outcome = collective_bandwidth.judge(gpu_view("h100x8"), entries(8, {"rest": 340.0, "all-to-all": 79.0}))
    assert (outcome.status, outcome.value, outcome.unit) == (PASS, pytest.approx(79.0), "GB/s")
    assert {*outcome.details["curves"]} == {*NAMES}
    [point] = [p for p in outcome.details["curves"]["all-to-all"] if p["bytes"] == 1 << 32]
    assert point["rank_seconds"] == pytest.approx([(1 << 32) * 0.875 / 79e9] * 8)
    assert outcome.details["latency"]["broadcast"] == [{"bytes": 8, "p50": 1e-5, "p99": 3e-5, "slowest_rank": 0}]


@each("virtual, rate, status", [("none", 62.9, PASS), ("none", 63.1, ERROR), ("passthrough", 63.1, PASS)])
def test_nothing_passes_what_its_slot_carries_where_nvml_knows_the_slot(virtual: str, rate: float, status: str) -> None:
    view = put_gpu(gpu_view("mixed"), range(2), virtualization=virtual)
    outcome = collective_bandwidth.judge(view, entries(2, {"rest": 15.0, "broadcast": rate}))
    assert outcome.status == status
    assert "mismeasured" in outcome.summary or status == PASS


def test_a_latency_that_is_no_time_is_an_error_and_one_that_nobody_took_is_left_out() -> None:
    ranks = entries(2, SLOW)
    ranks[1]["latency"]["all-gather"][0] |= {"p50": 4e-5, "p99": 9e-5}
    result = collective_bandwidth.judge(gpu_view("mixed"), ranks).details["latency"]["all-gather"][0]
    assert result == {"bytes": 8, "p50": 4e-5, "p99": 9e-5, "slowest_rank": 1}
    ranks[1]["latency"]["all-gather"][0]["p99"] = NAN
    assert collective_bandwidth.judge(gpu_view("mixed"), ranks).status == ERROR
    for entry in ranks:
        del entry["latency"]
    outcome = collective_bandwidth.judge(gpu_view("mixed"), ranks)
    assert (outcome.status, outcome.details["latency"]) == (PASS, {})


def test_what_was_not_measured_is_no_pass_but_for_what_gloo_does_not_have(cpu: View) -> None:
    ranks = entries(2, SLOW)
    del ranks[1]["curves"]["all-to-all"]
    assert collective_bandwidth.judge(gpu_view("mixed"), ranks).status == ERROR
    here = entries(2, SLOW, gpu=False)
    for entry in here:
        del entry["curves"]["all-to-all"]
        entry["unsupported"] = {"all-to-all": "ProcessGroupGloo does not support alltoall"}
    assert collective_bandwidth.judge(cpu, here).status == PASS
    for entry in here:
        del entry["curves"]["broadcast"]
    assert collective_bandwidth.judge(cpu, here).status == ERROR
    assert collective_bandwidth.judge(gpu_view("mixed"), entries(1, SLOW)).status == SKIP
    assert collective_bandwidth.judge(gpu_view("mixed"), entries(2, SLOW, gpu=False)).status == FAIL


GIB = 1 << 30


@each(
    "name, free, largest",
    [
        ("all-reduce", 80 * GIB, 4 * GIB),
        ("all-reduce", 16 * GIB, 4 * GIB),
        ("all-reduce", 16 * GIB - 1, GIB),
        ("all-reduce", 1, 0),
        ("all-to-all", 32 * GIB, 4 * GIB),
        ("all-to-all", 32 * GIB - 1, GIB),
    ],
)
def test_no_size_takes_more_than_a_quarter_of_the_free_memory_of_any_rank(name: str, free: int, largest: int) -> None:
    def least(tensor: list[int], op: str) -> None:
        assert op == "MIN"
        tensor[0] = min(tensor[0], free)

    class Tensor(list[int]):
        """As much of a tensor of one integer as is asked of it."""

        def __int__(self) -> int:
            return self[0]

    dist = SimpleNamespace(all_reduce=least, ReduceOp=SimpleNamespace(MIN="MIN"))
    cuda = SimpleNamespace(mem_get_info=lambda _device: (80 * GIB, 80 * GIB))
    torch = SimpleNamespace(cuda=cuda, tensor=lambda values, **_options: Tensor(values), int64=None)
    sizes = timed_collectives._sizes(torch, dist, SimpleNamespace(type="cuda"), name)  # noqa: SLF001 (no GPU to ask)
    assert max(sizes, default=0) == largest
