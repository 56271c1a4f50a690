"""The files of a fleet: each is the report of a node's run, or says in one line why it is none."""

import contextlib
import datetime as dt
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from envcheck.counting import counted
from envcheck.errors import ConfigError, refuse
from envcheck.fleet.one_report import CheckValue, NodeReport, NotAReportError, node_of_file, read
from envcheck.runner.schema import encodable
from envcheck.safe_files import read_regular

# A report of 64 ranks has a few MiB. One of 16 MiB that is made to cost memory takes at most 0.5 GB when it is read.
LONGEST: Final = 16 << 20


class FleetFile(NamedTuple):
    """A file as it was read, of which `note` says why it has no report; `node` "" where it says nothing of a node."""

    path: str
    modified: float
    node: str
    report: NodeReport | None
    note: str = ""

    @property
    def at(self) -> float:
        """Return when the run began, or when the file was written where it cannot be read."""
        begun = self.report.started if self.report else None
        return self.modified if begun is None else begun


def read_files(places: Iterable[Path]) -> list[FleetFile]:
    """Read the named files and every *.json below the named directories, each once, but those that begin with a dot."""
    files = []
    reports: dict[bytes, NodeReport] = {}
    configurations: dict[tuple[str, ...], dict[str, str]] = {}
    checks: dict[CheckValue, CheckValue] = {}
    for path in dict.fromkeys(map(os.path.abspath, _paths(places))):
        file = _read_file(path)
        if file.report:
            # Copies of a report are one, most nodes are configured alike, and most checks come to the same.
            alike = file.report.configuration
            alike = configurations.setdefault((*alike, *alike.values()), alike)
            values = tuple(checks.setdefault(value, value) for value in file.report.checks)
            report = file.report._replace(configuration=alike, checks=values)
            file = file._replace(report=reports.setdefault(report.digest, report))
        files.append(file)
    return files


def _paths(places: Iterable[Path]) -> Iterator[str]:
    for place in places:
        if place.is_dir():
            yield from _below(str(place))
        elif os.path.lexists(place):
            yield str(place)
        else:
            refuse(
                f"{place}: no such file or directory",
                "name the directory that `envcheck run --output DIR/` wrote, or its files",
            )


def _below(folder: str) -> Iterator[str]:
    """Yield the files of a directory that can be listed; another one is a path that cannot be read."""
    unlisted: list[OSError] = []
    for at, folders, names in os.walk(folder, onerror=unlisted.append):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (f"{at}/{name}" for name in sorted(names) if name.endswith(".json") and not name.startswith("."))
    yield from (error.filename for error in unlisted)


def _read_file(path: str) -> FleetFile:
    stem, modified = path.rpartition("/")[2].removesuffix(".json"), 0.0
    node = node_of_file(stem)
    try:
        with contextlib.suppress(OSError):
            modified = os.lstat(path).st_mtime
        modified = os.stat(path).st_mtime  # noqa: PTH116 (ten thousand paths; Path costs more than the call)
        content = read_regular(Path(path), LONGEST + 1)
        if len(content) <= LONGEST:
            report = read(content, stem)
            return FleetFile(encodable(path), modified, report.node, report)
        note = f"has more than {LONGEST >> 20} MiB, and no report has"
    except NotAReportError as error:
        return FleetFile(encodable(path), modified, "", None, str(error))
    except ConfigError as error:
        note = str(error)
    except OSError as error:
        note = f"cannot be read: {error.strerror}"
    return FleetFile(encodable(path), modified, encodable(node), None, note)


def history_lines(files: Iterable[FleetFile], who: str) -> Iterator[str]:
    """Yield how often a node failed, or a GPU by its UUID or the beginning of one; then its runs, the newest first."""
    failures: dict[bytes, tuple[float, str, list[str]]] = {}
    for file in files:
        report = file.report
        if report and file.node and (file.node == who or any(uuid.startswith(who) for uuid in report.gpus)):
            # Of a GPU what names it: another one of the node may be what failed.
            about = (c for c in report.checks if file.node == who or who in f"{c.gpu} {c.culprit}")
            why = [f"{c.check} [{c.code}]" for c in about if c.status == "fail"]
            failures[report.digest] = file.at, file.node, why
    if not failures:
        refuse(f"there is no report of {who[:60]!r}", "name directories with reports of it, or check the name")
    yield f"{who}: failed in {sum(bool(why) for _, _, why in failures.values())} of {counted(len(failures), 'run')}"
    for at, node, why in sorted(failures.values(), reverse=True):
        time = dt.datetime.fromtimestamp(at, dt.timezone.utc).isoformat(timespec="seconds")
        yield f"{time}  {node}  {', '.join(why) or 'nothing failed'}"
