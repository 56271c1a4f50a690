"""Speeds of GPUs on each side of each limit, the culprit named."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from envcheck.checks import ERROR, FAIL, PASS, WARN, View
from envcheck.checks.env import gemm_throughput, memory_bandwidth
from envcheck.node.snapshot import Signal
from tests.builders import H100, Entry, gpu_view, group, put, put_gpu
from tests.tables import each

NAN = float("nan")
MEASURED: dict[Any, Entry] = {
    gemm_throughput: {
        "values": {"bfloat16": 700.0, "float16": 690.0, "tf32": 400.0, "float32": 50.0, "float8": 1300.0},
        "errors": dict.fromkeys(gemm_throughput.DTYPES, 1e-5),
        "products": {dtype: {"messages": 30, "wrong": 0, "first": None} for dtype in gemm_throughput.DTYPES},
        "unsupported": {},
    },
    memory_bandwidth: {
        "values": {"HBM copy": 2900.0, "host to GPU": 52.0, "GPU to host": 52.0},
        "right": dict.fromkeys(memory_bandwidth.PATHS, True),
    },
}
CHECKS = pytest.mark.parametrize("check", MEASURED, ids=lambda check: check.__name__.rpartition(".")[2])


def entries(check: Any, view: View, name: str = H100) -> list[Entry]:
    return group({"name": name, **MEASURED[check]}, view=view)


@CHECKS
def test_a_healthy_node_passes_and_nothing_measured_is_an_error(check: Any, h100: View) -> None:
    assert check.judge(h100, entries(check, h100)).status == PASS
    for nothing in (dict[str, float](), None):
        ranks = entries(check, h100)
        ranks[3]["values"] = nothing
        assert check.judge(h100, ranks).status == ERROR


@CHECKS
@pytest.mark.parametrize("value", [NAN, 0.0, -1.0, None, float("inf")])
def test_a_value_that_is_no_speed_is_an_error(check: Any, h100: View, value: float | None) -> None:
    ranks = entries(check, h100)
    name = next(iter(ranks[6]["values"]))
    ranks[6]["values"][name] = value
    outcome = check.judge(h100, ranks)
    assert outcome.status == ERROR
    assert f"rank 6 measured no {name}" in outcome.summary


@each(
    "check, name, fail, warn, ceiling",
    [
        (gemm_throughput, "bfloat16", 555, 600, 1137.3),
        (gemm_throughput, "float16", 555, 600, 1137.3),
        (gemm_throughput, "float8", 980, 1120, 2275.8),
        (memory_bandwidth, "HBM copy", 2000, 2250, 3350),
        (memory_bandwidth, "host to GPU", 41, 46, 63),
        (memory_bandwidth, "GPU to host", 41, 44, 63),
    ],
)
def test_each_limit_holds_on_both_sides(
    h100: View, check: Any, name: str, fail: float, warn: float, ceiling: float
) -> None:
    for value, status in ((fail - 0.1, FAIL), (fail, WARN), (warn - 0.1, WARN), (warn, PASS), (ceiling + 0.1, ERROR)):
        ranks = entries(check, h100)
        for entry in ranks:
            entry["values"][name] = value
        outcome = check.judge(h100, ranks)
        assert outcome.status == status, (value, outcome)
        if status in (FAIL, WARN):
            assert f"on {h100.snapshot.gpus[0].uuid} ({H100}), {name}" in outcome.summary
            assert (outcome.limit is not None, bool(outcome.remedy)) == (True, True)


@each("share, status", [(0.901, PASS), (0.899, WARN)])
def test_a_gpu_that_meets_its_limit_and_lags_behind_its_peers_is_named(h100: View, share: float, status: str) -> None:
    ranks = entries(gemm_throughput, h100)
    ranks[4]["values"]["tf32"] *= share
    outcome = gemm_throughput.judge(h100, ranks)
    assert outcome.status == status
    if status == WARN:
        assert (outcome.details["rank"], outcome.value) == (4, 0.899)


@CHECKS
def test_a_model_without_limits_is_reported_and_not_judged(check: Any, h100: View) -> None:
    ranks = entries(check, h100, "NVIDIA X9000")
    for gpu in h100.snapshot.gpus:
        gpu.signals["pcie_gen_max"] = Signal(reason="NVML: Not Supported", why="unsupported")
    for entry in ranks:
        entry["values"] = dict.fromkeys(entry["values"], 1.0)
    outcome = check.judge(h100, ranks)
    assert (outcome.status, outcome.limit) == (PASS, None)
    assert "reported, not judged (no limit known for NVIDIA X9000)" in outcome.summary


@each("path", memory_bandwidth.PATHS)
def test_a_copy_that_nobody_compared_fails(h100: View, path: str) -> None:
    ranks = entries(memory_bandwidth, h100)
    ranks[3]["right"][path] = None
    assert memory_bandwidth.judge(h100, ranks).code == "data.wrong"


def across(view: View, name: str, rate: float, memory: float = 900.0, **link: int) -> str:
    gpu = view.snapshot.gpus[0]
    values = {"HBM copy": memory, "host to GPU": rate, "GPU to host": rate}
    [entry] = entries(memory_bandwidth, view, name)[:1]
    right = dict.fromkeys(values, True)
    entry |= {"world": 1, "device": gpu.uuid, "values": values, "right": right, "link": link}
    return memory_bandwidth.judge(view, [entry]).status


@each(
    "rate, lanes, status",
    [(13.1, 8, PASS), (13.1, 16, FAIL), (9.9, 8, FAIL), (10.1, 8, WARN), (26.0, 16, PASS), (16.0, 8, ERROR)],
)
def test_copies_owe_what_the_link_under_load_carries(rate: float, lanes: int, status: str) -> None:
    assert across(gpu_view("rtx4090"), "NVIDIA GeForce RTX 4090", rate, generation=4, lanes=lanes) == status


def test_what_a_hypervisor_or_a_superchip_shows_of_pcie_is_no_ceiling() -> None:
    guest = put_gpu(gpu_view("rtx4090"), [0], virtualization="passthrough", pcie_gen_max=1)
    assert across(guest, "NVIDIA GeForce RTX 4090", 26.0) == PASS
    assert across(gpu_view("rtx4090"), "NVIDIA GB300", 201.0, memory=6000.0) == PASS
    # What is encrypted on its way through bounce buffers is as slow as it is; the card's own memory is not.
    confidential = put(guest, gpu__confidential=True)
    assert across(guest, "NVIDIA GeForce RTX 4090", 4.0, generation=4, lanes=16) == FAIL
    assert across(confidential, "NVIDIA GeForce RTX 4090", 4.0, generation=4, lanes=16) == PASS
    # A link that nobody sampled is the one that the snapshot shows.
    assert across(gpu_view("rtx4090"), "NVIDIA GeForce RTX 4090", 13.1) == FAIL
    assert across(put_gpu(gpu_view("rtx4090"), [0], pcie_width=8), "NVIDIA GeForce RTX 4090", 13.1) == PASS
    samples = [{"pcie_gen": 1, "pcie_width": 16}, {"pcie_gen": 4, "pcie_width": 16}]
    assert memory_bandwidth.link({"samples": samples}) == {"generation": 4, "lanes": 16}
    assert memory_bandwidth.link({"samples": [{"clock": 5}], "unread": "no"}) == {}


@each(
    "products, status, message",
    [
        (
            {"messages": 30, "wrong": 2, "first": 17},
            FAIL,
            "2 of 30 tf32 products have wrong elements, first",
        ),
        ({"messages": 0, "wrong": 0, "first": None}, ERROR, "verified no tf32 product"),
        ({"messages": 30, "wrong": None}, ERROR, "verified no tf32 product"),
        ({}, ERROR, "verified no tf32 product"),
        (None, ERROR, "verified no tf32 product"),
    ],
)
def test_every_timed_product_has_to_be_verified(h100: View, products: Any, status: str, message: str) -> None:
    ranks = entries(gemm_throughput, h100)
    ranks[6]["products"]["tf32"] = products
    outcome = gemm_throughput.judge(h100, ranks)
    assert (outcome.status, outcome.remeasure, outcome.culprit[:6]) == (status, False, "rank 6")
    assert message in outcome.summary


# What a dtype's rounding leaves of a product of 8192 terms, by its bits of mantissa: 23, 10, 10, 7 and, in fp8, 3.
@each("dtype, most", [("float32", 1e-4), ("tf32", 5e-3), ("float16", 5e-3), ("bfloat16", 1e-2), ("float8", 2e-2)])
def test_each_dtype_is_held_to_its_own_rounding(h100: View, dtype: str, most: float) -> None:
    for error, status in ((most, PASS), (most * 1.01, FAIL), (-most, FAIL), (NAN, FAIL), (None, ERROR)):
        ranks = entries(gemm_throughput, h100)
        ranks[2]["errors"][dtype] = error
        outcome = gemm_throughput.judge(h100, ranks)
        assert (outcome.status, status == PASS or f"{dtype} product" in outcome.summary) == (status, True)


def test_a_dtype_the_gpu_lacks_is_named_and_not_owed() -> None:
    view = gpu_view("a100x8")
    ranks = entries(gemm_throughput, view, "NVIDIA A100-SXM4-80GB")
    for entry in ranks:
        entry["values"] = {"bfloat16": 250.0, "float16": 250.0, "tf32": 130.0, "float32": 18.0}
        entry["unsupported"] = {"float8": "not in this GPU"}
    outcome = gemm_throughput.judge(view, ranks)
    assert outcome.status == PASS
    assert "not here: float8" in outcome.summary


def test_dtypes_follow_the_gpu_and_the_torch() -> None:
    def lacking(capability: tuple[int, int], version: str) -> set[str]:
        torch = SimpleNamespace(__version__=version, _scaled_mm=1, float8_e4m3fn=1)
        device = SimpleNamespace(type="cuda")
        why = gemm_throughput._lacking  # noqa: SLF001 (no GPU to ask)
        return {dtype for dtype in gemm_throughput.DTYPES if why(torch, dtype, device, capability)}

    assert lacking((7, 0), "2.8.0+cu128") == {"bfloat16", "tf32", "float8"}
    assert lacking((8, 0), "2.8.0+cu128") == {"float8"}
    assert lacking((8, 9), "2.8.0+cu128") == set()
    assert lacking((9, 0), "2.4.1+cu121") == set()
    assert lacking((8, 9), "2.1.2+cu121") == {"float8"}


def sampled(**changes: Any) -> Entry:
    sample = {"clock": 1900, "clock_max": 1980, "power": 650.0, "temperature": 60, "reasons": [], **changes}
    return {"samples": [sample] * 9, "unread": None, "not_offered": {}}


CLOCKS = sampled(clock=1000, reasons=["applications clocks"])
HOT = sampled(clock=1000, reasons=["hardware thermal slowdown"], temperature=92)


@each(
    "value, power, load, status, message",
    [
        (500.0, 500.0, None, WARN, "capped at 500 of 700 W"),
        (397.0, 500.0, None, WARN, "capped at 500 of 700 W"),
        (396.0, 500.0, None, FAIL, "capped at 500 of 700 W"),
        (10.0, 200.0, None, WARN, "capped at 200 of 700 W"),  # what a GPU at a third of its power owes nobody knows
        *((500.0, power, None, FAIL, "slow") for power in (0.0, -1.0, NAN, "500")),
        (281.0, 700.0, CLOCKS, WARN, "its clock is set to 1000 of 1980 MHz"),
        (280.0, 700.0, CLOCKS, FAIL, "its clock is set to 1000 of 1980 MHz"),
        (400.0, 700.0, HOT, FAIL, "slow (1000 to 1000 MHz, 650 W, up to 92 C); hardware thermal slowdown"),
    ],
)
def test_a_gpu_that_somebody_caps_owes_what_the_cap_leaves_it(
    value: float, power: Any, load: Any, status: str, message: str
) -> None:
    view = gpu_view("h100x8")
    ranks = entries(gemm_throughput, view)
    ranks[1]["values"]["bfloat16"], ranks[1]["load"] = value, load
    view.snapshot.gpus[1].signals["power_limit"] = Signal(power)
    outcome = gemm_throughput.judge(view, ranks)
    assert (outcome.status, message in outcome.summary) == (status, True), outcome.summary
    if value == 396:
        assert outcome.limit is not None
        assert outcome.limit.value == pytest.approx(555 * 500 / 700, abs=0.1)
        assert "times 0.71 for the cap" in outcome.limit.source


def test_a_gpu_that_is_fast_enough_and_throttles_is_warned_of(h100: View) -> None:
    ranks = entries(gemm_throughput, h100)
    for entry in ranks:
        entry["load"] = sampled()
    assert gemm_throughput.judge(h100, ranks).status == PASS
    ranks[4]["load"]["samples"] = [*ranks[4]["load"]["samples"], {"reasons": ["power brake"]}]
    outcome = gemm_throughput.judge(h100, ranks)
    assert (outcome.status, outcome.details["rank"]) == (WARN, 4)
    assert "power brake" in outcome.summary
