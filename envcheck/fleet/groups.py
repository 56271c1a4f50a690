"""The nodes of a fleet by kind, and what differs within a kind: configuration (drift) and values (outliers).

An outlier is more than 8 scaled MADs and 10 % from the median of at least 8 values (1.4826 · MAD is the standard
deviation of normal noise). Where MAD is 0 another value is drift: any other count, or one that is 10 % away.
"""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from envcheck.fleet.files import FleetFile
from envcheck.fleet.hostlist import natural
from envcheck.fleet.one_report import NodeReport
from envcheck.reports import phrases
from envcheck.runner.schema import Row

# A clock may be this wrong, in seconds, before what it says is doubted.
CLOCK_SLACK: Final = 300.0
_HALF: Final = 0.5


class FleetGroup(Row, frozen=True, kw_only=True):
    """Nodes of one kind: of one GPU model, cell and driver branch."""

    gpu: str
    cell: str
    driver: str
    nodes: int


class ConfigurationDrift(Row, frozen=True, kw_only=True):
    """A signal in which nodes differ: what more than half of them have, if any, and who has each other value."""

    group: int
    signal: str
    majority: str | None
    share: float
    others: dict[str, list[str]]


class Outlier(Row, frozen=True, kw_only=True):
    """A value far from the median of its group: z counts scaled median absolute deviations; `gpu` "" where unknown."""

    group: int
    check: str
    node: str
    gpu: str
    value: float
    median: float
    unit: str
    z: float


def drift(group: int, configurations: Mapping[str, Mapping[str, str]]) -> Iterator[ConfigurationDrift]:
    """Yield the signals in which nodes differ. One that was not read is no difference; an unset env.* is one."""
    for signal in dict.fromkeys(signal for configuration in configurations.values() for signal in configuration):
        nodes: dict[str, list[str]] = defaultdict(list)
        for node, configuration in configurations.items():
            value = configuration.get(signal, "not set" if signal.startswith("env.") else None)
            if value is not None:
                nodes[value].append(node)
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


class Deviations(NamedTuple):
    """The places of values that are far from `usual`, with z; without z where most values are the same."""

    usual: float
    z: dict[int, float]
    drifting: list[int]


def compare(values: Sequence[float], floor: float = 0.0) -> Deviations:
    """Return which values are far from the others; `floor` is the least distance in their unit that counts."""
    if len(values) < LEAST:
        return Deviations(0.0, {}, [])
    usual = statistics.median(values)
    scale = max(SCALE * statistics.median(abs(value - usual) for value in values), floor / FURTHEST)
    if scale == 0:
        whole, distance = usual.is_integer(), FLOOR * abs(usual)
        other = [
            value != usual and ((whole and value.is_integer()) or abs(value - usual) > distance) for value in values
        ]
        return Deviations(usual, {}, [place for place, drifts in enumerate(other) if drifts])
    least = max(FURTHEST * scale, FLOOR * abs(usual), floor)
    far = {place: (value - usual) / scale for place, value in enumerate(values) if abs(value - usual) > least}
    return Deviations(usual, far, [])


# A file with the report that is in it.
Member = tuple[FleetFile, NodeReport]


def grouped(files: Iterable[FleetFile]) -> list[tuple[FleetGroup, list[Member]]]:
    """Return the groups, the largest first. A driver counts by its branch: other releases of it are drift."""
    held: dict[tuple[str, str, str], list[Member]] = defaultdict(list)
    for file in files:
        report = file.report
        if report is not None:
            kind = report.gpu or "no GPU", report.cell or "unknown", report.driver.partition(".")[0] or "none"
            held[kind].append((file, report))
    return [
        (FleetGroup(gpu=gpu, cell=cell, driver=driver, nodes=len(members)), members)
        for (gpu, cell, driver), members in sorted(held.items(), key=lambda item: (-len(item[1]), item[0]))
    ]


# A node, its value, and the GPU that it is of, "" where that is unknown.
_Measured = tuple[str, float, str]


def deviating(groups: Iterable[list[Member]]) -> Iterator[Outlier | ConfigurationDrift]:
    """Yield what is configured otherwise, and values far from those of the same group, number of GPUs and unit."""
    for number, members in enumerate(groups):
        yield from drift(number, {file.node: report.configuration for file, report in members})
        alike: dict[tuple[str, int, str], list[_Measured]] = defaultdict(list)
        for file, report in members:
            for check in report.checks:
                if check.value is not None:
                    alike[check.check, len(report.gpus), check.unit].append((file.node, check.value, check.gpu))
        for (name, _, unit), rows in alike.items():
            yield from _deviating(number, name, unit, rows)
        # A node whose file was written much longer after the end of the run than those of the others.
        late = [(file.node, file.modified - report.ended, "") for file, report in members if report.ended is not None]
        yield from _deviating(number, "clock", "s", late, CLOCK_SLACK)


def _deviating(
    group: int, check: str, unit: str, rows: list[_Measured], floor: float = 0.0
) -> Iterator[Outlier | ConfigurationDrift]:
    usual, far, drifting = compare([value for _, value, _ in rows], floor)
    for place, z in far.items():
        node, value, gpu = rows[place]
        yield Outlier(group=group, check=check, node=node, gpu=gpu, value=value, median=usual, unit=unit, z=round(z, 1))
    if drifting:
        nodes: dict[str, list[str]] = defaultdict(list)
        for place, (node, value, _) in enumerate(rows):
            nodes[phrases.quantity(value if place in drifting else usual, unit)].append(node)
        # Values that differ may read alike.
        if len(nodes) > 1:
            yield compared(group, check, nodes)
