"""Which state a node is in: the newest sighting counts, and no doubt is a pass."""

import json
import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from envcheck.fleet.files import FleetFile
from envcheck.fleet.groups import CLOCK_SLACK, FLOOR, FURTHEST, LEAST, SCALE, compare, deviating, drift
from envcheck.fleet.one_report import read
from envcheck.fleet.summary import states, under_one_name
from tests.fleet.node_reports import node_report, outcome_of
from tests.tables import each

NOW = 1_800_000_000.0
HOUR = 3600.0


SOUND = read(json.dumps(node_report("n1")).encode(), "n1")


def seen(node: str = "n1", hours_ago: float = 1.0, status: Any = "pass", **changes: float | None) -> FleetFile:
    at = NOW - hours_ago * HOUR
    ended = changes.get("ended", at + 60)
    why = "" if status == "pass" else "why"
    report = SOUND._replace(node=node, started=at, ended=ended, status=status, why=why)
    return FleetFile(f"{node}.json", changes.get("modified") or at + 61, node, report)


def state(*files: FleetFile, max_age: float = 24 * HOUR) -> str:
    [one] = states(files, NOW, max_age).values()
    assert one.state == "pass" or one.why
    return one.state


def test_the_newest_report_counts() -> None:
    assert state(seen(hours_ago=2, status="fail"), seen(hours_ago=1)) == "pass"
    assert state(seen(hours_ago=2), seen(hours_ago=1, status="fail")) == "fail"
    assert state(seen(hours_ago=2), seen(hours_ago=1, status="error")) == "error"
    for worse in ("fail", "error"):
        assert state(seen(status=worse), seen()) == state(seen(), seen(status=worse)) == worse, "of one moment"


def test_an_unreadable_file_that_is_newer_than_the_report_is_undetermined() -> None:
    broken = FleetFile("n1.json", NOW - HOUR, "n1", None, "is not a report")
    assert state(seen(hours_ago=2), broken) == "error"
    assert state(seen(hours_ago=0.5), broken) == "pass"


@each(
    "names, expected, one",
    [
        (("n1", "n1.site"), (), "n1"),
        (("n1.site", "N1"), ("n1.site",), "n1.site"),
        (("N1.site", "n1.site"), ("n1",), "n1"),
        (("n1", "n1.a", "n1.b"), (), ""),
        (("n1", "n1.b"), ("n1", "n1.b"), ""),
    ],
)
def test_short_and_full_names_are_one_node_whose_newest_report_counts(names: Any, expected: Any, one: str) -> None:
    files = [seen(name, hours_ago=2 - number, status="fail") for number, name in enumerate(names[:-1])]
    found = states(under_one_name([*files, seen(names[-1], hours_ago=0.5)], expected), NOW, 24 * HOUR)
    if one:
        assert {node: state.state for node, state in found.items()} == {one: "pass"}
    else:
        assert {node: state.state for node, state in found.items()} == dict.fromkeys(names, "fail") | {
            names[-1]: "pass"
        }


def test_a_report_is_stale_from_its_end_on_and_an_old_failure_stays_one() -> None:
    limit = 24 * HOUR
    assert state(seen(ended=NOW - limit), max_age=limit) == "pass"
    assert state(seen(ended=NOW - limit - 1), max_age=limit) == "stale"
    for status in ("fail", "error"):
        [old] = states([seen(hours_ago=90, status=status)], NOW, limit).values()
        [new] = states([seen(hours_ago=23, status=status)], NOW, limit).values()
        assert (old.state, old.age, new.age) == (status, "4 days", "")


def test_a_clock_that_is_ahead_is_undetermined() -> None:
    assert state(seen(ended=NOW + CLOCK_SLACK, modified=NOW + HOUR)) == "pass"
    assert state(seen(ended=NOW + CLOCK_SLACK + 1, modified=NOW + HOUR)) == "error"
    written = NOW - 5 * HOUR
    assert state(seen(hours_ago=5, ended=written + CLOCK_SLACK, modified=written)) == "pass"
    assert state(seen(hours_ago=5, ended=written + CLOCK_SLACK + 1, modified=written)) == "error"
    assert state(seen(hours_ago=-5, status="fail")) == "fail"


NOISE = [470.0, 472.0, 475.0, 477.0, 478.0, 480.0, 481.0, 484.0]


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
        members.append((seen(f"n{number}"), read(json.dumps(report).encode(), "")))
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
