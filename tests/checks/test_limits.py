"""Limits are data, and data can be wrong: a floor above what hardware does never passes, one far below never fails."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest

from envcheck.checks import limits

ROWS = limits.rows()
BANDWIDTHS = [row for row in ROWS if "spec" in row]
UNITS = {"B", "s", "GB/s", "TFLOP/s", "link losses", "of the start"}


@pytest.mark.parametrize("row", ROWS, ids=json.dumps)
def test_each_row_has_bound_unit_source_and_date(row: dict[str, Any]) -> None:
    assert row["check"]
    assert row["unit"] in UNITS
    assert len(row["source"]) > 20
    assert dt.date.fromisoformat(row["date"]) <= dt.datetime.now(dt.timezone.utc).date() + dt.timedelta(days=1)
    assert "fail" in row or "warn" in row


@pytest.mark.parametrize("row", BANDWIDTHS, ids=json.dumps)
def test_a_floor_lies_below_the_spec_and_above_a_third_of_it(row: dict[str, Any]) -> None:
    assert 0.3 * row["spec"] < row["fail"] < row["warn"] < row["spec"] <= row["ceiling"]
    assert row["warn"] < row.get("measured", row["ceiling"]) <= row["ceiling"]


def test_no_two_rows_answer_the_same_question() -> None:
    asked = [
        (row["check"], gpu, transport, row.get("gpus"))
        for row in ROWS
        for gpu in row.get("gpu", [None])
        for transport in ([row.get("transport")] if not isinstance(row.get("transport"), list) else row["transport"])
    ]
    assert len(asked) == len(set(asked))


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
