"""The nodes of a fleet by kind, and what differs within a kind: configuration (drift) and values (outliers).

A value is an outlier where at least 8 nodes have one, it is more than 8 scaled MADs from their median (1.4826 · MAD is
the standard deviation of normal noise; MAD is the median absolute deviation, which outliers do not move), and more than
10 % away: noise of 1 % must not alarm. Where more than half of the values are equal, MAD is 0 and another value is
drift: any other count, and a measurement that is 10 % away.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from envcheck.fleet.database import FleetDatabase
from envcheck.fleet.hostlist import natural
from envcheck.fleet.model import CLOCK_SLACK, ConfigurationDrift, FleetGroup, Outlier
from envcheck.reports import phrases

ABSENT: Final = "not set"
_HALF: Final = 0.5


def drift(
    group: int, configurations: Mapping[str, Sequence[str]], contents: Mapping[str, Mapping[str, str]]
) -> Iterator[ConfigurationDrift]:
    """Yield the signals in which the nodes of a group differ.

    `configurations` are the nodes by what is equal among them, the key of `contents`: most nodes share one. A signal
    that a node does not have counts only if it is one that somebody sets (env.*): what was not read is no difference.
    """
    signals = dict.fromkeys(signal for content in contents.values() for signal in content)
    for signal in signals:
        nodes: dict[str, list[str]] = defaultdict(list)
        for key, members in configurations.items():
            value = contents[key].get(signal, ABSENT if signal.startswith("env.") else None)
            if value is not None:
                nodes[value] += members
        if len(nodes) > 1:
            yield compared(group, signal, nodes)


def compared(group: int, signal: str, nodes: Mapping[str, Sequence[str]]) -> ConfigurationDrift:
    """Return how the nodes differ in a signal; `nodes` are those of each value."""
    counts = Counter({value: len(members) for value, members in nodes.items()})
    [(most, count)] = counts.most_common(1)
    share = count / counts.total()
    others = {
        value: sorted(members, key=natural) for value, members in nodes.items() if value != most or share <= _HALF
    }
    return ConfigurationDrift(
        group=group,
        signal=signal,
        majority=most if share > _HALF else None,
        share=round(share, 4),
        others=dict(sorted(others.items(), key=lambda item: (len(item[1]), item[0]))),
    )


LEAST: Final = 8
FURTHEST: Final = 8.0
SCALE: Final = 1.4826
FLOOR: Final = 0.1


class Deviation(NamedTuple):
    """A value that is an outlier, by its place in the values; z is signed."""

    place: int
    value: float
    median: float
    z: float


class OutlierResult(NamedTuple):
    """The outliers of some values; where MAD is 0 the value of most of them, and the places of those that drift."""

    outliers: list[Deviation]
    constant: float | None = None
    drifting: list[int] = []  # noqa: RUF012 (a NamedTuple's default is never changed)


def compare(values: Sequence[float], floor: float = 0.0) -> OutlierResult:
    """Return which values are far from the others; `floor` is the least distance in their unit that counts."""
    if len(values) < LEAST:
        return OutlierResult([])
    median = statistics.median(values)
    scale = max(SCALE * statistics.median(abs(value - median) for value in values), floor / FURTHEST)
    if scale == 0:
        return OutlierResult([], median, [place for place, value in enumerate(values) if _drifts(value, median)])
    least = max(FURTHEST * scale, FLOOR * abs(median), floor)
    far = [
        Deviation(place, value, median, (value - median) / scale)
        for place, value in enumerate(values)
        if abs(value - median) > least
    ]
    return OutlierResult(far)


def _drifts(value: float, constant: float) -> bool:
    counts = value.is_integer() and constant.is_integer()
    return value != constant and (counts or abs(value - constant) > FLOOR * abs(constant))


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


def grouped(runs: Iterable[RunFacts]) -> list[GroupRuns]:
    """Return the groups, the largest first. A driver counts by its branch: other releases of it are drift."""
    held: dict[tuple[str, str, str], list[RunFacts]] = defaultdict(list)
    for run in runs:
        held[run.gpu or "no GPU", run.cell or "unknown", run.driver.partition(".")[0] or "none"].append(run)
    return [
        GroupRuns(FleetGroup(gpu=gpu, cell=cell, driver=driver, nodes=len(members)), members)
        for (gpu, cell, driver), members in sorted(held.items(), key=lambda item: (-len(item[1]), item[0]))
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
