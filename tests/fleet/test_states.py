"""Which state a node is in: the newest sighting counts, and no doubt is a pass."""

import json
from typing import Any

from envcheck.fleet.files import FleetFile
from envcheck.fleet.groups import CLOCK_SLACK
from envcheck.fleet.one_report import read
from envcheck.fleet.summary import states, under_one_name
from tests.fleet.node_reports import node_report
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


def test_an_expected_node_without_a_report_is_missing() -> None:
    data = states([seen()], NOW, 24 * HOUR, ["n1", "n2"])
    assert {node: one.state for node, one in data.items()} == {"n1": "pass", "n2": "missing"}
