"""The answer for a fleet as Prometheus text, for node_exporter's textfile collector; sound nodes are one number."""

from __future__ import annotations

import datetime as dt
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

from envcheck.fleet.model import BAD, FleetReport
from envcheck.reports.formats.prometheus import Sample, exposition

_Row = TypeVar("_Row")
_AXES: Final = ("gpu", "cell", "driver")
# Series of one family: a fleet must not grow a database without end. What is beyond is counted in the totals.
MOST: Final = 1000


def prometheus(report: FleetReport) -> str:
    """Return the exposition text; every sample is a gauge."""
    return exposition([*_fleet(report), *_nodes(report), *_deviations(report)])


def _fleet(report: FleetReport) -> Iterator[Sample]:
    at = dt.datetime.fromisoformat(report.at).timestamp()
    yield "envcheck_fleet_info", {"tool": report.tool, "schema": report.schema}, 1.0, "The envcheck that wrote this."
    yield "envcheck_fleet_timestamp_seconds", {}, at, "When the reports were summed up, seconds since 1970."
    for status in ("pass", "fail", "error"):
        doc = "1 for what the fleet came to; error is undetermined."
        yield "envcheck_fleet_verdict", {"status": status}, float(report.verdict.status == status), doc
    doc = "Nodes by state; only pass is a pass."
    yield "envcheck_fleet_nodes", {"state": "pass"}, float(report.nodes.passed), doc
    for state in BAD:
        yield "envcheck_fleet_nodes", {"state": state}, float(len(report.nodes.of(state))), doc
    for group in report.groups:
        labels = {name: value or "" for name, value in zip(_AXES, (group.gpu, group.cell, group.driver), strict=True)}
        yield "envcheck_fleet_group_nodes", labels, float(group.nodes), "Nodes of one kind that have a report."
    ignored = sum(not file.node for file in report.unread)
    yield "envcheck_fleet_files", {"kind": "ignored"}, float(ignored), "Files that were read, by what they are."
    yield "envcheck_fleet_files", {"kind": "unreadable"}, float(len(report.unread) - ignored), ""
    yield "envcheck_fleet_files", {"kind": "report"}, float(report.files - len(report.unread)), ""


def _nodes(report: FleetReport) -> Iterator[Sample]:
    """Yield a series for each node that is not fit, and for each check and GPU that is blamed."""
    doc = "1 for a node that is not fit, with its state."
    states = ((node, state) for state in BAD for node in report.nodes.of(state))
    yield from (
        ("envcheck_fleet_node_unfit", {"node": node, "state": state}, 1.0, doc) for node, state in _first(states)
    )
    blamed = (
        {"node": one.node, "gpu": one.who if one.kind == "gpu" else "", "check": check, "code": code.rstrip("]")}
        for one in report.verdict.blame
        for check, _, code in (by.partition(" [") for by in one.by)
    )
    doc = "1 for a failed check of a node, with its code, and the GPU where one is blamed."
    yield from (("envcheck_fleet_failed_check", labels, 1.0, doc) for labels in _first(blamed))


def _deviations(report: FleetReport) -> Iterator[Sample]:
    drift = Counter(row.signal for row in report.drift for nodes in row.others.values() for _ in nodes)
    doc = "Nodes whose signal differs from the majority of their group."
    yield from (
        ("envcheck_fleet_drift_nodes", {"signal": name}, float(count), doc) for name, count in _first(drift.items())
    )
    doc = "How many scaled median absolute deviations a value is from the median of its group."
    for row in _first(report.outliers):
        labels = {"node": row.node, "check": row.check, "gpu": row.gpu, "group": str(row.group)}
        yield "envcheck_fleet_outlier_score", labels, row.z, doc
    yield "envcheck_fleet_drifting_signals", {}, float(len(drift)), "Signals in which nodes differ from their group."
    yield "envcheck_fleet_outliers", {}, float(len(report.outliers)), "Values far from the median of their group."


def _first(rows: Iterable[_Row]) -> Iterator[_Row]:
    return itertools.islice(rows, MOST)
