"""What the reports of a group come to: each node's own counts, of several the worst, and no speed is no pass."""

import json
import os
from pathlib import Path
from typing import Any

from envcheck.fleet.files import read_files
from envcheck.fleet.pairs.launch import LaunchResult, result_of
from envcheck.fleet.pairs.results import GroupResult, GroupTest, compared, usual_speed
from tests.fleet.node_reports import ENDED, STARTED, failing, node_report
from tests.tables import each

LAUNCHED = LaunchResult(STARTED, ENDED, "")


def result(at: Path, nodes: tuple[str, ...], *reports: dict[str, Any]) -> GroupResult:
    """Return what a group comes to by reports in files of any name."""
    for number, report in enumerate(reports):
        (at / f"{number}.json").write_text(json.dumps(report))
    return result_of(GroupTest("group", nodes), read_files([at]), LAUNCHED)


def test_a_node_of_another_domain_does_not_answer_for_one_that_is_missing(tmp_path: Path) -> None:
    missing = result(tmp_path, ("n1.a", "n1.b"), node_report("n1.a"))
    assert (missing.status, missing.reason) == ("undetermined", "no report of n1.b")


@each("launched, own", [("n1", "n1.site"), ("n1.site", "n1"), ("n1", "n1")])
def test_a_node_may_call_itself_with_or_without_its_domain(tmp_path: Path, launched: str, own: str) -> None:
    assert result(tmp_path, (launched, "n2"), node_report(own), node_report("n2")).status == "pass"


@each("order", [1, -1])
def test_of_two_reports_of_a_node_the_worse_counts(tmp_path: Path, order: int) -> None:
    both = [failing(node_report("n1")), node_report("n1")][::order]
    assert result(tmp_path, ("n1", "n2"), *both, node_report("n2")).status == "fail"


def test_a_file_that_is_no_report_is_passed_over_and_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "n2.json")
    (tmp_path / "n3.json").write_text("{")
    missing = result(tmp_path, ("n1", "n2"), node_report("n1"))
    assert missing.status == "undetermined"
    assert missing.reason == "no report of n2: n2.json: is not a regular file"


@each(
    "speeds, sizes, usual",
    [
        ([400.0, 200.0], [8, 4], 350.0),
        ([400.0, 200.0], [2, 16], None),
        ([400.0], [8], None),
        ([400.0] * 4, [1, 9], 400),
    ],
)
def test_a_few_speeds_say_what_is_usual_only_of_groups_of_like_size(
    speeds: list[float], sizes: list[int], usual: float | None
) -> None:
    assert usual_speed((GroupResult("pass", speed) for speed in speeds), sizes) == usual


@each(
    "speed, usual, status",
    [(None, None, "pass"), (None, 400.0, "undetermined"), (320.0, 400.0, "pass"), (319.0, 400.0, "fail")],
)
def test_a_group_without_a_speed_is_no_pass_where_others_have_one(
    speed: float | None, usual: float | None, status: str
) -> None:
    assert compared(GroupResult("pass", speed), usual).status == status
