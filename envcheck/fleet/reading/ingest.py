"""Bring the files of a fleet into the database: what changed is read, each file comes to a run or to one line."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from envcheck.errors import ConfigError
from envcheck.fleet.reading.database import FleetDatabase, KnownFile
from envcheck.fleet.reading.files import LONGEST, FoundFile, find
from envcheck.fleet.reading.one_report import NotAReportError, OtherDocument, node_of_file, read
from envcheck.runner.schema import encodable
from envcheck.safe_files import read_regular


class IngestResult(NamedTuple):
    """The files of a fleet, each once, and how many of them were read now; `empty` are places without a file."""

    files: list[KnownFile]
    read: int
    empty: list[str]


def ingest(database: FleetDatabase, places: Sequence[Path]) -> IngestResult:
    """Read what is new below the places. Raise ConfigError for a place that is not there."""
    recorded, files, read_now, empty = database.files(), dict[str, KnownFile](), 0, list[str]()
    for place in places:
        number = 0
        for number, located in enumerate(find([place]), 1):  # noqa: B007 (used below)
            path = encodable(os.path.abspath(located.path))  # noqa: PTH100 (Path costs more than the call)
            if path in files:
                continue
            file = recorded.get(path)
            if file is None or not located.stamp or file.stamp != located.stamp:
                file = _read(database, located, path)
                database.keep_file(file)
                read_now += 1
            files[path] = file
        if not number:
            empty.append(encodable(str(place)))
    return IngestResult([*files.values()], read_now, empty)


def _read(database: FleetDatabase, file: FoundFile, path: str) -> KnownFile:
    stem = os.path.basename(path).removesuffix(".json")  # noqa: PTH119 (as above)
    node = node_of_file(stem)
    if file.problem:
        return KnownFile(path, file.stamp, file.modified, node, None, file.problem, problem=True)
    try:
        report = read(read_regular(Path(file.path), LONGEST + 1), stem)
    except NotAReportError as error:
        return KnownFile(path, file.stamp, file.modified, "", None, error.message, problem=True)
    except ConfigError as error:
        return KnownFile(path, file.stamp, file.modified, node, None, str(error), problem=True)
    except OSError as error:
        note = f"cannot be read: {error.strerror}"
        return KnownFile(path, file.stamp, file.modified, node, None, note, problem=True)
    if isinstance(report, OtherDocument):
        return KnownFile(path, file.stamp, file.modified, node, None, f"is a document {report.schema}, not of one node")
    run = database.run_of(report.digest)
    return KnownFile(path, file.stamp, file.modified, report.node, database.add(report) if run is None else run)
