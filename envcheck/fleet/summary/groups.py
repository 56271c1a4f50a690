"""The nodes of a fleet by kind, and what of the database is compared within a kind."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from envcheck.fleet.reading.database import FleetDatabase
from envcheck.fleet.summary.drift import compared, drift
from envcheck.fleet.summary.model import ConfigurationDrift, FleetGroup, Outlier
from envcheck.fleet.summary.outliers import compare
from envcheck.fleet.summary.states import CLOCK_SLACK
from envcheck.reports import phrases

AXES: Final = ("gpu", "cell", "driver")


class RunFacts(NamedTuple):
    """A run as it is grouped. `gpus` is their number, `late` the seconds from its end to when its file was written."""

    run: int
    node: str
    gpu: str
    gpus: int
    cell: str
    driver: str
    configuration: int
    late: float | None


class GroupRuns(NamedTuple):
    """A group, with its runs."""

    group: FleetGroup
    runs: list[RunFacts]


def run_facts(database: FleetDatabase, runs: Collection[int], modified: dict[int, float]) -> list[RunFacts]:
    """Return the facts of some runs; `modified` is when their files were written."""
    query = "SELECT id, node, gpu, gpus, cell, driver, configuration, ended FROM runs"
    return [
        RunFacts._make((*row[:7], None if row[7] is None or row[0] not in modified else modified[row[0]] - row[7]))
        for row in database.each(query)
        if row[0] in runs
    ]


def grouped(runs: Iterable[RunFacts], by: Sequence[str]) -> list[GroupRuns]:
    """Return the groups, the largest first. A driver counts by its branch: other releases of it are drift."""
    held: dict[tuple[str | None, ...], list[RunFacts]] = defaultdict(list)
    for run in runs:
        kinds = {
            "gpu": run.gpu or "no GPU",
            "cell": run.cell or "unknown",
            "driver": run.driver.partition(".")[0] or "none",
        }
        held[tuple(kinds[axis] if axis in by else None for axis in AXES)].append(run)
    ordered = sorted(held.items(), key=lambda item: (-len(item[1]), tuple(map(str, item[0]))))
    return [
        GroupRuns(FleetGroup(gpu=gpu, cell=cell, driver=driver, nodes=len(members)), members)
        for (gpu, cell, driver), members in ordered
    ]


def drifts(database: FleetDatabase, groups: Sequence[GroupRuns]) -> Iterator[ConfigurationDrift]:
    """Yield in what the nodes of each group are configured differently."""
    contents = dict(database.rows("SELECT id, content FROM configurations"))
    for number, group in enumerate(groups):
        members: dict[str, list[str]] = defaultdict(list)
        for run in group.runs:
            members[str(run.configuration)].append(run.node)
        yield from drift(number, members, {key: json.loads(contents[int(key)]) for key in members})


class _MeasuredValues(NamedTuple):
    node: str
    value: float
    gpu: str
    repeat: int


def measured(database: FleetDatabase, groups: Sequence[GroupRuns]) -> Iterator[Outlier | ConfigurationDrift]:
    """Yield the values that are far from those of the same group and number of GPUs, a check at a time."""
    kind = {run.run: (number, run.gpus, run.node) for number, group in enumerate(groups) for run in group.runs}
    units = dict(database.rows("SELECT id, text FROM names"))
    query = "SELECT run, value, unit, gpu, attempts FROM outcomes WHERE name = ? AND value IS NOT NULL"
    for name, check in database.rows("SELECT id, text FROM names WHERE id IN (SELECT DISTINCT name FROM outcomes)"):
        alike: dict[tuple[int, int, str], list[_MeasuredValues]] = defaultdict(list)
        for run, value, unit, gpu, attempts in database.each(query, (name,)):
            if run in kind:
                number, gpus, node = kind[run]
                alike[number, gpus, units.get(unit, "")].append(_MeasuredValues(node, value, gpu or "", attempts or 1))
        for (number, _, unit), values in alike.items():
            yield from _deviating(number, check, unit, values)
    yield from _clocks(groups)


def _deviating(
    group: int, check: str, unit: str, rows: list[_MeasuredValues], floor: float = 0.0
) -> Iterator[Outlier | ConfigurationDrift]:
    result = compare([row.value for row in rows], floor)
    for place, value, median, z in result.outliers:
        row = rows[place]
        yield Outlier(
            group=group, check=check, node=row.node, gpu=row.gpu, value=value, median=median, unit=unit,
            z=round(z, 1), repeat=row.repeat,
        )  # fmt: skip
    if result.constant is not None and result.drifting:
        drifting = {*result.drifting}
        nodes: dict[str, list[str]] = defaultdict(list)
        for place, row in enumerate(rows):
            value = row.value if place in drifting else result.constant
            nodes[phrases.quantity(value, unit)].append(row.node)
        yield compared(group, check, nodes)


def _clocks(groups: Sequence[GroupRuns]) -> Iterator[Outlier | ConfigurationDrift]:
    """Yield the nodes whose files were written much longer after the end of the run than those of the others."""
    for number, group in enumerate(groups):
        rows = [_MeasuredValues(run.node, run.late, "", 1) for run in group.runs if run.late is not None]
        yield from (row for row in _deviating(number, "clock", "s", rows, CLOCK_SLACK) if isinstance(row, Outlier))


def statuses(database: FleetDatabase, run: int) -> list[Any]:
    """Return a run's outcomes that are no pass and no skip: (check, status, code, culprit, gpu, summary)."""
    query = (
        "SELECT names.text, status, code, culprit, outcomes.gpu, summary FROM outcomes JOIN names ON names.id = name"
        " WHERE run = ? AND code IS NOT NULL ORDER BY status DESC, name"
    )
    return database.rows(query, (run,))
