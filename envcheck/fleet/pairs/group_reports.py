"""What a test came to, from the report files that its nodes wrote."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from envcheck.errors import ConfigError
from envcheck.fleet.pairs.model import ROLL_CALL, GroupResult, GroupTest, NodeAnswer
from envcheck.fleet.reading.files import LONGEST, find
from envcheck.fleet.reading.one_report import BY_SEVERITY, NodeReport, read
from envcheck.printable import printable
from envcheck.safe_files import read_regular

# The check whose value is the speed of a group.
SPEED_CHECK: Final = "all-reduce-bandwidth"
_MOST_NAMED: Final = 5
_LONGEST: Final = 200


class LaunchResult(NamedTuple):
    """How a launch went: seconds since 1970 at its start and end, and its last line of output or why it ended."""

    started: float
    ended: float
    last_line: str


def read_reports(folder: Path) -> tuple[list[NodeReport], list[str]]:
    """Return the reports below a folder, and a line for each file that is not one."""
    reports, problems = [], []
    for file in find([folder]):
        if file.problem:
            problems.append(f"{Path(file.path).name}: {file.problem}")
            continue
        try:
            report = read(read_regular(Path(file.path), LONGEST + 1), Path(file.path).stem)
        except (ConfigError, OSError) as error:
            problems.append(f"{Path(file.path).name}: {error}")
            continue
        if isinstance(report, NodeReport):
            reports.append(report)
    return reports, problems


def result_of(
    test: GroupTest, reports: Sequence[NodeReport], problems: Sequence[str], launched: LaunchResult
) -> GroupResult:
    """Return what the reports of a test say together; a group of which a report is missing is undetermined.

    A report of pass is not enough for a group: it counts only beside those of all its nodes.
    """
    by_node = {node: report for node in test.nodes if (report := _report_of(node, reports)) is not None}
    answers = tuple(_answer(node, report, launched) for node, report in by_node.items())
    missing = [node for node in test.nodes if node not in by_node]
    seconds = launched.ended - launched.started
    why = "; ".join(filter(None, [*problems[:1], launched.last_line]))[:_LONGEST]
    if test.step == ROLL_CALL:
        return GroupResult("pass", None, printable(f"no report: {why}" if why else "no report"), (), answers, seconds)
    faulty = tuple(gpu for answer in answers for gpu in answer.faulty_gpus)
    failing = [answer for answer in answers if answer.status == "fail"]
    unclear = [answer for answer in answers if answer.status == "undetermined"]
    speed = min(_speeds(by_node.values()), default=None)
    if failing:
        return GroupResult("fail", speed, f"{failing[0].node}: {failing[0].reason}", faulty, answers, seconds)
    if missing:
        named = f"no report of {', '.join(missing[:_MOST_NAMED])}"
        return GroupResult("undetermined", speed, printable(f"{named}: {why}" if why else named), (), (), seconds)
    if unclear:
        return GroupResult("undetermined", speed, f"{unclear[0].node}: {unclear[0].reason}", (), answers, seconds)
    return GroupResult("pass", speed, "", faulty, answers, seconds)


def _report_of(node: str, reports: Sequence[NodeReport]) -> NodeReport | None:
    """Return the report of a node, of several the worst; a launcher may call it n1, and the node itself n1.cluster."""
    own = [report for report in reports if report.node == node] or [
        report
        for report in reports
        if report.node.partition(".")[0] == node.partition(".")[0] and ("." not in node or "." not in report.node)
    ]
    return max(own, key=lambda report: BY_SEVERITY.index(report.status), default=None)


def _answer(node: str, report: NodeReport, launched: LaunchResult) -> NodeAnswer:
    status = "undetermined" if report.status == "error" else report.status
    gpus = {check.gpu for check in report.checks if check.status == "fail" and check.gpu}
    reason = next((f"{check.check}: {check.summary}" for check in report.checks if check.status == "fail"), report.why)
    return NodeAnswer(
        node=node,
        status=status,
        reason=printable(reason)[:_LONGEST],
        gpus=len(report.gpus),
        driver=report.driver,
        kernel=report.configuration.get("host.kernel", ""),
        clock=_clock(report, launched),
        faulty_gpus=tuple(f"{node} {gpu}" for gpu in sorted(gpus)),
    )


def _clock(report: NodeReport, launched: LaunchResult) -> float | None:
    """Return how far a node's clock is ahead of this machine's, as far as the launch shows: 0 within its time."""
    if report.started is None or report.ended is None:
        return None
    return min(report.started - launched.started, 0.0) or max(report.ended - launched.ended, 0.0)


def _speeds(reports: Iterable[NodeReport]) -> list[float]:
    return [
        check.value
        for report in reports
        for check in report.checks
        if check.check == SPEED_CHECK and check.value is not None and check.unit == "GB/s"
    ]
