"""Limits are data, and data can be wrong: a floor above what hardware does never passes, one far below never fails."""

import datetime as dt
import json
from typing import Any

import pytest

from envcheck.checks import FAIL, PASS, WARN, limits
from tests.tables import each

ROWS = limits.rows()
BANDWIDTHS = [row for row in ROWS if "spec" in row]
UNITS = {
    *("B", "s", "GB/s", "TFLOP/s", "link losses", "a day"),
    *("of the start", "of the ports' rate", "of the links' rate", "of one GPU"),
}


@each("row", ROWS)
def test_each_row_has_bound_unit_source_and_date(row: dict[str, Any]) -> None:
    assert row["check"]
    assert row["unit"] in UNITS
    assert len(row["source"]) > 20
    assert dt.date.fromisoformat(row["date"]) <= dt.datetime.now(dt.timezone.utc).date() + dt.timedelta(days=1)
    assert "fail" in row or "warn" in row


@each("row", BANDWIDTHS)
def test_a_floor_lies_below_the_spec_and_above_a_third_of_it(row: dict[str, Any]) -> None:
    assert 0.3 * row["spec"] < row["fail"] < row["warn"] < row["spec"] <= row["ceiling"]


@each("row", BANDWIDTHS)
def test_every_floor_lies_below_every_healthy_machine_that_a_row_quotes(row: dict[str, Any]) -> None:
    assert all(row["warn"] < one["value"] <= row["ceiling"] and len(one["source"]) > 10 for one in row["measurements"])


@each("row", BANDWIDTHS)
def test_a_row_is_verified_by_two_repositories_or_says_that_it_is_not(row: dict[str, Any]) -> None:
    repositories = {one["source"].partition("#")[0].split()[0].rstrip(",") for one in row["measurements"]}
    assert limits.verified(row) == (len(repositories) >= 2)
    assert row.get("verified") in (None, False)


@pytest.mark.parametrize("row", [{"verified": False}, {}], ids=json.dumps)
@pytest.mark.parametrize(
    ("value", "share", "status"), [(79, 1, FAIL), (81, 1, WARN), (89, 1, WARN), (90, 1, PASS), (41, 0.5, WARN)]
)
def test_an_unverified_row_only_warns(row: dict[str, Any], value: float, share: float, status: str) -> None:
    whole = {"fail": 80, "warn": 90, "unit": "GB/s", "source": "two machines of the same maker", **row}
    outcome = limits.short(whole, value, "copy: slow one", fix="reseat", share=share)
    if status == FAIL and row:
        assert outcome is not None
        assert (outcome.status, outcome.code, outcome.remeasure) == (WARN, "speed.unverified", False)
        assert "unverified" in outcome.summary
    else:
        assert (PASS if outcome is None else outcome.status) == status


@each("generation, lanes, floor", [(4, 16, 20), (4, 8, 10), (3, 16, 9), (5, 4, 10.25)])
def test_a_pcie_link_owes_what_its_generation_and_lanes_carry(generation: int, lanes: int, floor: float) -> None:
    row = limits.pcie("host-to-gpu", generation, lanes)
    assert row is not None
    assert row["fail"] == pytest.approx(floor)
    assert f"x{lanes} of generation {generation}" in row["source"]


@each("generation, lanes", [(None, 16), (4, None), (4, 0), (4, -1), (9, 16), (4, 64), ("4", 16)])
def test_a_link_that_nobody_knows_owes_nothing(generation: Any, lanes: Any) -> None:
    assert limits.pcie("host-to-gpu", generation, lanes) is None


def test_the_boards_that_public_reports_measure_are_sound() -> None:
    for value in (2474.76, 2578.12):
        row = limits.find("hbm-copy", gpu="NVIDIA H100 80GB HBM3")
        assert row is not None
        assert limits.short(row, value, "HBM copy", fix="") is None


# GB/s one way: NVLinks together (NVIDIA's data sheets give both ways), the slot's 16 lanes of Gen4 on an L40S.
LINKS = {
    "A100 80GB PCIe": 300.0,
    "H100 PCIe": 300.0,
    "5090": 63.0,
    "GB200": 900.0,
    "V100-SXM2": 150.0,
    "A100-SXM4": 300.0,
    "H100": 450.0,
    "H200": 450.0,
    "B200": 900.0,
    "L40S": 31.5,
    "H800": 200.0,
    "H20": 450.0,
    "RTX PRO 6000": 63.0,
}
OLDER = (LINKS["A100-SXM4"], LINKS["V100-SXM2"])
SENT = [row for row in BANDWIDTHS if row["check"].startswith(("all-", "reduce-", "broadcast", "send-", "peer-"))]


@each("row", SENT)
def test_no_ceiling_is_above_what_links_carry_and_a_switch_can_add(row: dict[str, Any]) -> None:
    for gpu in row["gpu"]:
        rate = next(rate for name, rate in LINKS.items() if name in gpu)
        added = 2 * (row["gpus"] - 1) / (row["gpus"] + 1) if _adds(row, rate) else 1.0
        assert row["ceiling"] == pytest.approx(rate * added, abs=0.1)


def _adds(row: dict[str, Any], rate: float) -> bool:
    """Return whether the switch between these GPUs adds: since Hopper it does, in an all-reduce."""
    return row["check"] == "all-reduce-bandwidth" and "nvls" in row["transport"] and rate not in OLDER


def test_no_two_rows_answer_the_same_question() -> None:
    requests = [
        (row["check"], gpu, transport, row.get("gpus"), row.get("pcie"))
        for row in ROWS
        for gpu in row.get("gpu", [None])
        for transport in ([row.get("transport")] if not isinstance(row.get("transport"), list) else row["transport"])
    ]
    assert len(requests) == len(set(requests))


def test_a_row_is_found_by_all_it_holds() -> None:
    place = {"gpu": "NVIDIA H200", "transport": "nvls", "gpus": 8}
    row = limits.find("all-reduce-bandwidth", **place)
    assert row is not None
    assert row["fail"] == 375
    for axis, other in (("gpu", "NVIDIA H300"), ("transport", "pcie"), ("gpus", 3)):
        assert limits.find("all-reduce-bandwidth", **{**place, axis: other}) is None


def test_a_bound_that_has_to_be_there_is_an_error_when_it_is_not() -> None:
    with pytest.raises(KeyError):
        limits.limit("no-such-check", "fail")


# What healthy boards without a row of their own reach at least, and figures of sick ones (limits.json has the sources).
SHARES = (
    ("gemm-float32", "NVIDIA L4", 10.66, 5.0),
    ("gemm-bfloat16", "NVIDIA A30", 100.0, 40.0),
    ("gemm-tf32", "NVIDIA A100-SXM4-80GB", 97.0, 19.5),
    ("gemm-float16", "NVIDIA H100 NVL", 420.0, 60.0),
    ("hbm-copy", "NVIDIA GB200", 5440.0, 2000.0),
)


@each("check, gpu, healthy, sick", SHARES)
def test_a_known_gpu_without_a_row_is_judged_by_its_data_sheet(
    check: str, gpu: str, healthy: float, sick: float
) -> None:
    row = limits.find(check, gpu=gpu)
    assert row is not None
    assert "data sheet" in row["source"]
    assert limits.short(row, healthy, "a product", fix="") is None
    short = limits.short(row, sick, "a product", fix="look")
    assert short is not None
    assert (short.status, short.code) == (WARN, "speed.unverified")
    assert healthy < row["spec"] < row["ceiling"]


@each("row", BANDWIDTHS)
def test_no_healthy_figure_is_below_the_data_sheets_floor_or_above_its_ceiling(row: dict[str, Any]) -> None:
    for gpu in row.get("gpu") or []:
        sheet = limits.by_data_sheet(row["check"], gpu)
        assert sheet is None or all(sheet["warn"] < one["value"] < sheet["ceiling"] for one in row["measurements"])


def test_every_data_sheet_names_its_gpus_once_and_a_peak_for_each_product() -> None:
    peaks = json.loads(limits.FILE.read_text(encoding="utf-8"))["peaks"]
    names = [gpu for row in peaks for gpu in row["gpu"]]
    assert len(names) == len(set(names)) >= 60
    bare = [row["gpu"] for row in peaks if not {"gemm-float32", "hbm-copy", "source"} <= row.keys()]
    assert bare == [["NVIDIA Thor"]]
