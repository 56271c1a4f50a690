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
    at.mkdir(exist_ok=True)
    for number, report in enumerate(reports):
        (at / f"{number}.json").write_text(json.dumps(report))
    return result_of(GroupTest("group", nodes), read_files([at]), LAUNCHED)


@each(
    "launched, reports, status",
    [
        (("n1.a", "n1.b"), [node_report("n1.a")], "undetermined"),
        (("n1", "n1.b"), [node_report("n1"), node_report("n1.b")], "pass"),
        (("n1", "n2"), [node_report("n1.site"), node_report("n2")], "pass"),
        (("n1.site", "n2"), [node_report("n1"), node_report("n2")], "pass"),
        (("n1",), [failing(node_report("n1")), node_report("n1")], "fail"),
        (("n1",), [node_report("n1"), failing(node_report("n1"))], "fail"),
    ],
)
def test_each_node_answers_for_itself_with_or_without_its_domain_and_the_worse_report_counts(
    tmp_path: Path, launched: tuple[str, ...], reports: list[dict[str, Any]], status: str
) -> None:
    assert result(tmp_path / "-".join([*launched, status]), launched, *reports).status == status


def test_a_node_with_a_short_name_does_not_answer_for_its_namesake_in_another_domain(tmp_path: Path) -> None:
    found = result(tmp_path, ("n1", "n1.b"), node_report("n1"), failing(node_report("n1.b")))
    assert {answer.node: answer.status for answer in found.answers} == {"n1": "pass", "n1.b": "fail"}


def test_a_file_that_is_no_report_is_passed_over_and_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "n2.json")
    (tmp_path / "n3.json").write_text("{")
    missing = result(tmp_path, ("n1", "n2"), node_report("n1"))
    assert missing.status == "undetermined"
    assert missing.reason == "no report of n2: n2.json: cannot be read: not a regular file"


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
