"""The nodes of a fleet by kind: GPU models, driver and host architecture; from reports, or from a CSV file."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from envcheck import safe_files
from envcheck.counting import counted
from envcheck.errors import ConfigError
from envcheck.fleet.hostlist import fold, is_name, natural, unfold
from envcheck.fleet.reading.database import opened
from envcheck.fleet.reading.ingest import ingest
from envcheck.matrix.resolver.query import DRIVER_VERSION

_COLUMNS: Final = ("node", "gpu", "driver", "arch", "count")
_NEEDED: Final = ("node", "gpu", "driver")
_MOST: Final = 1 << 20
_FIX: Final = "write a header node,gpu,driver[,arch][,count] and a line for each node or host list"
_ARCHS: Final = {"": "x86_64", "amd64": "x86_64", "arm64": "aarch64", "x86_64": "x86_64", "aarch64": "aarch64"}


class NodeKind(NamedTuple):
    """What decides which cells run on a node."""

    gpus: tuple[str, ...]
    driver: str
    arch: str


class Inventory(NamedTuple):
    """How many nodes there are of each kind, and their names; `notes` say which nodes are left out, and why.

    `first` says where each kind is named first: FILE:LINE, or the report of a node.
    """

    counts: dict[NodeKind, int]
    names: dict[NodeKind, list[str]]
    notes: list[str]
    first: dict[NodeKind, str]


def of_places(places: Iterable[Path]) -> Inventory:
    """Return the inventory in CSV files, and in the reports in other files and below directories.

    Raise ConfigError for a line of CSV that cannot be understood, and where there is no node at all.
    """
    everything = [*places]
    tables = [place for place in everything if place.suffix.lower() == ".csv" and not place.is_dir()]
    counts, names, notes = defaultdict[NodeKind, int](int), defaultdict[NodeKind, list[str]](list), list[str]()
    lines, first, twice = dict[str, str](), dict[NodeKind, str](), list[str]()
    report_places = [place for place in everything if place not in tables]
    rows = [*_of_reports(report_places)] if report_places else []
    reported = {node: kind for node, kind, _ in rows if kind is not None}
    notes += [note for _, kind, note in rows if kind is None]
    for table in tables:
        for where, kind, nodes, count in _of_csv(table):
            named = nodes if len(nodes) == count else []
            for node in named:
                _refuse_second(node, lines, where)
            again = [node for node in named if node in reported]
            twice += again
            if count > len(again):
                counts[kind] += count - len(again)
                names[kind] += [node for node in nodes if not named or node not in reported]
                first.setdefault(kind, where)
    for node, kind in reported.items():
        counts[kind] += 1
        names[kind].append(node)
        first.setdefault(kind, f"the report of {node}")
    if twice:
        notes.append(f"{fold(twice)}: the report counts, and not the line of CSV")
    if not counts:
        why = f": {notes[0]}" if notes else ""
        message = f"no node with a GPU and a driver in {', '.join(map(str, everything))}{why}"
        raise ConfigError(message, fix="name reports of `envcheck run`, or a CSV file: node,gpu,driver[,arch][,count]")
    sorted_names = {kind: sorted(set(nodes), key=natural) for kind, nodes in names.items()}
    return Inventory(dict(counts), sorted_names, notes, first)


def _refuse_second(node: str, lines: dict[str, str], where: str) -> None:
    """Remember the line that names a node. Raise ConfigError for a node that a line before names too."""
    before = lines.setdefault(node, where)
    if before != where:
        message = f"{where}: {node} is in {before} too"
        raise ConfigError(message, fix="name each node once")


def _of_reports(places: list[Path]) -> Iterable[tuple[str, NodeKind | None, str]]:
    """Yield each node with its kind by its newest report, or the note that says why it has none."""
    with opened(None) as database:
        files = ingest(database, places).files
        query = "SELECT node, gpu, driver, arch FROM runs WHERE id IN (SELECT run FROM files) ORDER BY started, id"
        newest = {row[0]: row[1:] for row in database.rows(query)}
    yield from ((file.node, None, f"{file.path} {file.note}") for file in files if file.problem)
    for node, (gpu, driver, arch) in newest.items():
        if gpu and driver:
            yield node, NodeKind(tuple(gpu.split(" + ")), driver, _ARCHS.get(arch, arch)), ""
        else:
            yield node, None, f"{node} is left out: its report has {'no driver' if gpu else 'no GPU'}"


def _of_csv(path: Path) -> Iterable[tuple[str, NodeKind, list[str], int]]:
    try:
        content = safe_files.read_whole(path).decode()
        rows = csv.DictReader(io.StringIO(content), skipinitialspace=True, strict=True)
        header = [name.strip() for name in rows.fieldnames or ()]
        rows.fieldnames = header
        if not set(_NEEDED) <= set(header) <= set(_COLUMNS) or len(header) > len(set(header)):
            columns = f"{path}:1: the columns are {', '.join(header)[:60]!r}"
            message = columns if any(header) else f"{path} has no header line"
            raise ConfigError(message, fix=_FIX)
        for row in rows:
            where = f"{path}:{rows.line_num}"
            yield (where, *_csv_row(where, row))
    except UnicodeDecodeError as error:
        message = f"{path} is not a text file"
        raise ConfigError(message, fix=_FIX) from error
    except csv.Error as error:
        message = f"{path} is not CSV: {error}"
        raise ConfigError(message, fix=_FIX) from error


def _csv_row(where: str, row: dict[str | None, str | None]) -> tuple[NodeKind, list[str], int]:
    values = {name: (row.get(name) or "").strip() for name in _COLUMNS}
    if None in row or not all(values[name] for name in _NEEDED):
        message = f"{where}: a line needs a node, a GPU and a driver, and no more than the header names"
        raise ConfigError(message, fix=_FIX)
    arch = _ARCHS.get(values["arch"].lower())
    if arch is None:
        message = f"{where}: {values['arch'][:20]!r} is not a host architecture"
        raise ConfigError(message, fix="write x86_64 or aarch64")
    if not DRIVER_VERSION.fullmatch(values["driver"]):
        message = f"{where}: {values['driver'][:20]!r} is not a driver version"
        raise ConfigError(message, fix="write it as nvidia-smi prints it, 570.124.06")
    number = values["count"]
    if number and not (number.isascii() and number.isdigit() and 0 < int(number[:8]) <= _MOST):
        message = f"{where}: {number[:20]!r} is not a number of nodes"
        raise ConfigError(message, fix="write how many nodes the line is about, 1 or more")
    nodes = _nodes(values["node"], number, where)
    kind = NodeKind(tuple(gpu.strip() for gpu in values["gpu"].split("+")), values["driver"], arch)
    return kind, nodes, int(number) if number else len(nodes)


def _nodes(listed: str, number: str, where: str) -> list[str]:
    """Return the nodes of a line; with a number of nodes the first column may be any label of a partition."""
    if number and is_name(listed):
        return [listed]
    try:
        nodes = unfold(listed)
    except ConfigError as error:
        message = f"{where}: {error.message}"
        raise ConfigError(message, fix=error.fix) from error
    if number and int(number) != len(nodes):
        message = f"{where}: {listed[:40]!r} names {counted(len(nodes), 'node')}, and the count is {number[:20]}"
        raise ConfigError(message, fix="leave out the count, or write a label for the nodes")
    return nodes
