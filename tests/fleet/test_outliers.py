"""Outliers by the median absolute deviation, each limit on both sides, and drift from the majority of a group."""

import json
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envcheck.fleet.groups import FLOOR, FURTHEST, LEAST, SCALE, Member, compare, deviating, drift
from envcheck.fleet.one_report import read
from tests.fleet.node_reports import node_report, outcome_of
from tests.tables import each

NOISE = [470.0, 472.0, 475.0, 477.0, 478.0, 480.0, 481.0, 484.0]


def test_a_slow_value_is_an_outlier_with_its_z() -> None:
    mad = statistics.median(abs(value - 477.0) for value in [*NOISE, 380.0])
    far = compare([*NOISE, 380.0])
    assert (far.usual, far.drifting, [*far.z]) == (477.0, [], [8])
    assert far.z[8] == pytest.approx((380.0 - 477.0) / (SCALE * mad))


TIGHT = [100.0 + place / 100 for place in range(8)]
WIDE = [float(value) for value in range(600, 1401, 100)] + [1000.0]  # whose scale is SCALE * 200


@each(
    "values, floor, far",
    [
        ([*NOISE[: LEAST - 2], 1.0], 0, []),
        ([*NOISE[: LEAST - 1], 1.0], 0, [7]),
        ([*TIGHT, 100.0 * (1 - FLOOR) + 0.1], 0, []),
        ([*TIGHT, 100.0 * (1 - FLOOR) - 0.1], 0, [8]),
        ([*WIDE, 1000 - FURTHEST * SCALE * 200 + 1], 0, []),
        ([*WIDE, 1000 + FURTHEST * SCALE * 200 + 1], 0, [10]),
        ([1.0] * 8 + [300.0], 300.0, []),
        ([1.0] * 8 + [302.0], 300.0, [8]),
    ],
)
def test_what_is_far_enough_of_enough_values_is_an_outlier(values: list[float], floor: float, far: list[int]) -> None:
    assert [*compare(values, floor).z] == far


def test_values_that_are_constant_drift() -> None:
    assert compare([8.0] * 10 + [7.0]) == (8.0, {}, [10])
    for usual, value, drifting in ((8.0, 8.0, []), (0.08, 0.087, []), (0.08, 0.089, [10]), (0.0, 0.001, [10])):
        assert compare([usual] * 10 + [value]).drifting == drifting


def test_a_drift_that_reads_like_the_usual_is_no_row() -> None:
    members = []
    for number in range(9):
        report = node_report(f"n{number}")
        outcome_of(report, "gemm-throughput").update(value=10**9 + (number == 0), unit="B")
        members.append(Member(f"n{number}", read(json.dumps(report).encode(), ""), None))
    assert [*deviating([members])] == []


@given(st.integers(0, 1000))
def test_normal_noise_has_no_outlier(seed: int) -> None:
    noise = random.Random(seed)  # noqa: S311 (a test's noise)
    assert compare([noise.gauss(480, 4.8) for _ in range(200)]).z == {}


def test_a_node_that_differs_from_most_is_named_with_its_value() -> None:
    [row] = drift(0, {node: {"kernel": "2" if node == "n3" else "1"} for node in ("n1", "n2", "n10", "n3")})
    assert (row.signal, row.majority, row.share, row.others) == ("kernel", "1", 0.75, {"2": ["n3"]})
    [row] = drift(0, {"n1": {"kernel": "1"}, "n2": {"kernel": "2"}})
    assert (row.majority, row.others) == (None, {"1": ["n1"], "2": ["n2"]}), "half is no majority"


def test_a_signal_that_was_not_read_is_no_difference_and_a_variable_that_is_not_set_is_one() -> None:
    one, other = {"kernel": "1", "env.NCCL_ALGO": "Ring"}, {"env.NCCL_DEBUG": "INFO"}
    rows = {row.signal: row for row in drift(0, {"n1": one, "n2": one, "n3": other})}
    assert sorted(rows) == ["env.NCCL_ALGO", "env.NCCL_DEBUG"]
    assert rows["env.NCCL_ALGO"].others == {"not set": ["n3"]}
