"""A line for what was noticed besides the nodes' states: places without a file, copies, reports that do not count."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import Final

from envcheck.counting import counted
from envcheck.fleet.hostlist import fold, is_name, natural
from envcheck.fleet.reading.database import FleetDatabase, KnownFile
from envcheck.fleet.reading.one_report import DEFAULT_NAME, node_of_file
from envcheck.fleet.summary.groups import RunFacts
from envcheck.fleet.summary.states import Sighting
from envcheck.reports.redact import UNKEYED

_SHOWN: Final = 3


def notes(
    files: Sequence[KnownFile], empty: Iterable[str], sightings: Iterable[Sighting], expected: Collection[str]
) -> Iterator[str]:
    """Yield the lines; `empty` are the places without a file."""
    yield from (f"{place}: no *.json in it; write reports with `envcheck run --output DIR/`" for place in empty)
    by_node: dict[str, list[Sighting]] = defaultdict(list)
    for sighting in sightings:
        by_node[sighting.node].append(sighting)
    yield from _of_one_moment(by_node)
    yield from _superseded(by_node)
    yield from _unexpected(by_node, expected)
    yield from _copies(files)
    yield from (f"{file.path} {file.note}" for file in files if file.run is None and not file.problem)
    yield from _misnamed(files)


def _of_one_moment(by_node: dict[str, list[Sighting]]) -> Iterator[str]:
    """Yield the nodes of which several reports begin at the newest moment."""
    for node, seen in by_node.items():
        newest = max(one.at for one in seen)
        runs = {one.run: PurePath(one.path).name for one in seen if one.run is not None and one.at == newest}
        if len(runs) > 1:
            shown = ", ".join([*runs.values()][:_SHOWN])
            worst = "worse" if len(runs) == 2 else "worst"  # noqa: PLR2004 (a comparative is of two)
            yield f"{node} has {len(runs)} different reports of one moment, the {worst} of them counts: {shown}"


def gpu_notes(database: FleetDatabase, runs: Sequence[RunFacts]) -> Iterator[str]:
    """Yield which nodes have no GPU where others have one, and the GPUs that are in the reports of two nodes."""
    without = [run.node for run in runs if not run.gpus and is_name(run.node)]
    others = sum(bool(run.gpus) for run in runs)
    if without and others:
        rest = f"{counted(others, 'other node')} {_has(others)} one"
        yield f"{fold(without)} {_has(len(without))} no GPU, and {rest}: `envcheck run --require-gpu` fails without"
    node_of = {run.run: run.node for run in runs}
    rows = (row for row in database.each("SELECT uuid, run FROM gpus ORDER BY uuid") if row[1] in node_of)
    for uuid, found in itertools.groupby(rows, key=lambda row: str(row[0])):
        nodes = sorted({node_of[run] for _, run in found}, key=natural)
        if len(nodes) > 1 and not uuid.startswith(UNKEYED):
            listed = ", ".join(nodes[:_SHOWN]) + (" and others" if len(nodes) > _SHOWN else "")
            yield f"{uuid} is in the reports of {listed}: it was moved, or a report is a copy"


def _has(number: int) -> str:
    return "has" if number == 1 else "have"


def _superseded(by_node: dict[str, list[Sighting]]) -> Iterator[str]:
    """Yield how many reports do not count, in one line: a directory may hold each node's of a year."""
    older = []
    for seen in by_node.values():
        newest = max(one.at for one in seen)
        older.append(sum(one.at < newest for one in seen))
    count, nodes = sum(older), sum(map(bool, older))
    if count:
        yield f"{counted(count, 'older report')} of {counted(nodes, 'node')}: only the newest report of a node counts"


def _unexpected(by_node: Iterable[str], expected: Collection[str]) -> Iterator[str]:
    nodes = [node for node in by_node if expected and node not in expected]
    if nodes:
        names = fold(filter(is_name, nodes))
        yield f"--expect does not name {counted(len(nodes), 'node')} that reported: {names or 'names of no host'}"


def _copies(files: Iterable[KnownFile]) -> Iterator[str]:
    first: dict[int, str] = {}
    for file in files:
        if file.run is not None and first.setdefault(file.run, file.path) != file.path:
            yield f"{file.path} is the same report as {first[file.run]}"


def _misnamed(files: Iterable[KnownFile]) -> Iterator[str]:
    """Yield the files whose name says another node than the report in them."""
    names: dict[int, set[str]] = defaultdict(set)
    for file in files:
        if file.run is not None:
            names[file.run].add(_short(node_of_file(PurePath(file.path).stem)))
    for file in files:
        named = node_of_file(PurePath(file.path).stem)
        if file.run is not None and not names[file.run] & {DEFAULT_NAME, _short(file.node)}:
            yield f"{file.path} holds the report of {file.node}, not of {named}"


def _short(node: str) -> str:
    return node.partition(".")[0]
