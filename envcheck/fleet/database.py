"""The reports that were read, in SQLite: what is new is added in one transaction, and nothing is read twice.

A run is known by the hash of its report, so that a file that moved is the same run and a file that was written again is
another one. Runs stay when their files are gone: they are the history.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import sqlite3
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec

from envcheck.counting import counted
from envcheck.errors import ConfigError, UnavailableError
from envcheck.fleet.one_report import BY_SEVERITY, NodeReport, NotAReportError, OtherDocument, node_of_file, read
from envcheck.runner.schema import Row, encodable
from envcheck.safe_files import read_regular

# A report of 64 ranks has a few MiB. One of 16 MiB that is made to cost memory takes at most 0.5 GB when it is read.
LONGEST: Final = 16 << 20
_FIX: Final = "name the directory that `envcheck run --output DIR/` wrote, or its files"


class FoundFile(NamedTuple):
    """A file that may be a report. `stamp` changes with the file; `modified` is the time in seconds, UTC.

    `problem` says why the file cannot be read; then the other fields are what is known.
    """

    path: str
    stamp: str
    modified: float
    problem: str = ""


def find(places: Iterable[Path]) -> Iterator[FoundFile]:
    """Yield the named files and every *.json below the named directories, by name.

    Names that begin with a dot are left out: they are locks and unfinished files. Raise ConfigError for a place that is
    not there.
    """
    for place in places:
        if place.is_dir():
            yield from _below(str(place))
        elif os.path.lexists(place):
            yield _looked_at(str(place))
        else:
            message = f"{place}: no such file or directory"
            raise ConfigError(message, fix=_FIX)


def _below(folder: str) -> Iterator[FoundFile]:
    try:
        with os.scandir(folder) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
    except OSError as error:
        yield FoundFile(folder, "", 0.0, f"cannot list the directory: {error.strerror}")
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _below(entry.path)
        elif entry.name.endswith(".json"):
            yield _looked_at(entry.path)


def _looked_at(path: str) -> FoundFile:
    try:
        facts = os.stat(path)  # noqa: PTH116 (ten thousand paths; Path costs more than the call)
    except OSError as error:
        return FoundFile(path, "", _link_made(path), f"cannot be read: {error.strerror}")
    stamp = f"{facts.st_dev}:{facts.st_ino}:{facts.st_size}:{facts.st_mtime_ns}:{facts.st_ctime_ns}"
    problem = ""
    if not stat.S_ISREG(facts.st_mode):
        problem = "is not a regular file"
    elif facts.st_size > LONGEST:
        problem = f"has {facts.st_size >> 20} MiB, and no report has more than {LONGEST >> 20}"
    return FoundFile(path, stamp, facts.st_mtime, problem)


def _link_made(path: str) -> float:
    """Return when a link that leads nowhere was made; 0 for what cannot be looked at at all."""
    with contextlib.suppress(OSError):
        return os.lstat(path).st_mtime
    return 0.0


_APPLICATION: Final = 0x656E7666  # "envf"
_VERSION: Final = 2
_WAIT: Final = 30.0
_TABLES: Final = """
CREATE TABLE runs(id INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE, node TEXT NOT NULL, started REAL, ended REAL,
  status TEXT NOT NULL, why TEXT NOT NULL, gpu TEXT NOT NULL, gpus INTEGER NOT NULL, cell TEXT NOT NULL,
  driver TEXT NOT NULL, arch TEXT NOT NULL, configuration INTEGER NOT NULL);
CREATE INDEX runs_of_node ON runs(node, started);
CREATE TABLE gpus(uuid TEXT NOT NULL, run INTEGER NOT NULL, PRIMARY KEY(uuid, run)) WITHOUT ROWID;
CREATE TABLE names(id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);
CREATE TABLE configurations(id INTEGER PRIMARY KEY, content TEXT NOT NULL UNIQUE);
CREATE TABLE outcomes(name INTEGER NOT NULL, run INTEGER NOT NULL, status INTEGER NOT NULL, value REAL, unit INTEGER,
  attempts INTEGER, code TEXT, culprit TEXT, gpu TEXT, summary TEXT, PRIMARY KEY(name, run)) WITHOUT ROWID;
CREATE INDEX findings ON outcomes(run) WHERE code IS NOT NULL;
CREATE TABLE files(path TEXT PRIMARY KEY, stamp TEXT NOT NULL, modified REAL NOT NULL, node TEXT NOT NULL,
  run INTEGER, note TEXT NOT NULL, problem INTEGER NOT NULL) WITHOUT ROWID;
"""
_RUN: Final = (
    "INSERT INTO runs(digest, node, started, ended, status, why, gpu, gpus, cell, driver, arch, configuration)"
    " VALUES (?,?,?,?,?,?,?,?,?,?,?,?)"
)
_FIX_DATABASE: Final = "name another file with --db, or delete this one: the reports are read again"


class KnownFile(NamedTuple):
    """A file as it was read: the run in it, or why there is none (`note`, a `problem` or not).

    `node` is "" for a file that says nothing of a node.
    """

    path: str
    stamp: str
    modified: float
    node: str
    run: int | None
    note: str = ""
    problem: bool = False


class FleetDatabase:
    """The runs of a fleet. Open it with `opened`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._names: dict[str, int] = dict(self.rows("SELECT text, id FROM names"))
        self._configurations: dict[str, int] = dict(self.rows("SELECT content, id FROM configurations"))

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return the rows of a query."""
        return self._connection.execute(query, values).fetchall()

    def each(self, query: str, values: Sequence[Any] = ()) -> Iterator[Any]:
        """Yield the rows of a query one by one."""
        return iter(self._connection.execute(query, values))

    def files(self) -> dict[str, KnownFile]:
        """Return all files that were read, by path."""
        query = "SELECT path, stamp, modified, node, run, note, problem FROM files"
        return {row[0]: KnownFile._make((*row[:6], bool(row[6]))) for row in self.each(query)}

    def keep_file(self, file: KnownFile) -> None:
        """Remember what a file had."""
        self._connection.execute("INSERT OR REPLACE INTO files VALUES (?,?,?,?,?,?,?)", file)

    def run_of(self, digest: str) -> int | None:
        """Return the run of a report that was read before."""
        rows = self.rows("SELECT id FROM runs WHERE digest = ?", (digest,))
        return int(rows[0][0]) if rows else None

    def add(self, report: NodeReport) -> int:
        """Keep a report and return its run."""
        content = msgspec.json.encode(report.configuration, order="sorted").decode()
        number = self._number("configurations", "content", content, self._configurations)
        head = (report.digest, report.node, report.started, report.ended, report.status, report.why)
        facts = (report.gpu, len(report.gpus), report.cell, report.driver, report.arch)
        cursor = self._connection.execute(_RUN, (*head, *facts, number))
        run = cursor.lastrowid or 0
        self._connection.executemany("INSERT OR IGNORE INTO gpus VALUES (?,?)", ((uuid, run) for uuid in report.gpus))
        self._add_outcomes(report, run)
        return run

    def _add_outcomes(self, report: NodeReport, run: int) -> None:
        rows = []
        for check in report.checks:
            finding = check.status in ("warn", "fail", "error")
            numbers = (self._name(check.check), run, BY_SEVERITY.index(check.status), check.value)
            unit = None if check.value is None else self._name(check.unit)
            texts = (
                (check.code, check.culprit, check.gpu, check.summary)
                if finding
                else (None, None, check.gpu or None, None)
            )
            rows.append((*numbers, unit, check.attempts or None, *texts))
        self._connection.executemany("INSERT OR REPLACE INTO outcomes VALUES (?,?,?,?,?,?,?,?,?,?)", rows)

    def _name(self, text: str) -> int:
        return self._number("names", "text", text, self._names)

    def _number(self, table: str, column: str, text: str, numbers: dict[str, int]) -> int:
        if text not in numbers:
            cursor = self._connection.execute(f"INSERT INTO {table}({column}) VALUES (?)", (text,))  # noqa: S608 (ours)
            numbers[text] = cursor.lastrowid or 0
        return numbers[text]


@contextlib.contextmanager
def opened(path: Path | None) -> Iterator[FleetDatabase]:
    """Give the database in a file, made where there is none, or one that ends with the block (None).

    All that the block adds is kept when it ends, or nothing. Raise ConfigError for a file that is another's, and
    UnavailableError where the database cannot be used.
    """
    where = "" if path is None else str(path)
    if path is not None and (not path.parent.is_dir() or (path.exists() and not path.is_file())):
        message = f"{path} is not a file, or its directory is not there"
        raise ConfigError(message, fix="name a file in a directory that exists with --db")
    try:
        connection = sqlite3.connect(where or ":memory:", timeout=_WAIT, isolation_level=None)
    except sqlite3.Error as error:
        raise _unavailable(where, error) from error
    try:
        _prepare(connection, where)
        connection.execute("BEGIN IMMEDIATE")
        yield FleetDatabase(connection)
        connection.execute("COMMIT")
    except sqlite3.DatabaseError as error:
        raise _unavailable(where, error) from error
    except (LookupError, TypeError, ValueError) as error:
        if path is None:
            raise
        message = f"{where} does not hold what envcheck wrote into it ({type(error).__name__})"
        raise ConfigError(message, fix=_FIX_DATABASE) from error
    finally:
        connection.close()


def _prepare(connection: sqlite3.Connection, where: str) -> None:
    application, version = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
    )
    if (application, version) == (_APPLICATION, _VERSION):
        return
    empty = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
    if not empty or application not in (0, _APPLICATION):
        other = f"of version {version}, not {_VERSION}" if application == _APPLICATION else "of another program"
        message = f"{where} is a database {other}"
        raise ConfigError(message, fix=_FIX_DATABASE)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(
        f"BEGIN IMMEDIATE;{_TABLES}PRAGMA application_id = {_APPLICATION};PRAGMA user_version = {_VERSION};COMMIT;"
    )


def _unavailable(where: str, error: sqlite3.Error) -> UnavailableError | ConfigError:
    name = where or "the database in memory"
    if any(words in str(error) for words in ("not a database", "malformed", "no such table", "no such column")):
        return ConfigError(f"{name} is not a database of envcheck: {error}", fix=_FIX_DATABASE)
    return UnavailableError(
        f"{name}: {error}", fix="check the path, its rights and the free space, and that no other process holds it"
    )


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
                file = _read_file(database, located, path)
                database.keep_file(file)
                read_now += 1
            files[path] = file
        if not number:
            empty.append(encodable(str(place)))
    return IngestResult([*files.values()], read_now, empty)


def _read_file(database: FleetDatabase, file: FoundFile, path: str) -> KnownFile:
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


def statuses(database: FleetDatabase, run: int) -> list[Any]:
    """Return a run's outcomes that are no pass and no skip: (check, status, code, culprit, gpu, summary)."""
    query = (
        "SELECT names.text, status, code, culprit, outcomes.gpu, summary FROM outcomes JOIN names ON names.id = name"
        " WHERE run = ? AND code IS NOT NULL ORDER BY status DESC, name"
    )
    return database.rows(query, (run,))


SCHEMA: Final = "envcheck/fleet-history/1"
_GPU: Final = ("GPU-", "MIG-")
_SHOWN: Final = 20
_RUNS: Final = (
    "SELECT id, node, started, status, why, driver, cell FROM runs WHERE {where} ORDER BY started DESC, id DESC"
)


class PastFinding(Row, frozen=True, kw_only=True):
    """A check that was no pass."""

    check: str
    status: str
    code: str
    culprit: str
    summary: str


class PastRun(Row, frozen=True, kw_only=True):
    """One run. `status` is the node's, or of a GPU what the findings that name it came to; `at` "" where unknown."""

    node: str
    at: str
    status: Literal["pass", "warn", "fail", "error"]
    why: str
    driver: str
    cell: str
    findings: list[PastFinding]


class FleetHistory(Row, frozen=True, kw_only=True):
    """The runs of a node or a GPU, the newest first. `failed` counts the runs, `checks` how often each one failed."""

    schema: Literal["envcheck/fleet-history/1"] = SCHEMA
    who: str
    nodes: list[str]
    gpus: list[str]
    failed: int
    checks: dict[str, int]
    runs: list[PastRun]


def history(database: FleetDatabase, who: str) -> FleetHistory:
    """Return what is known of a node, or of a GPU by its UUID or the beginning of one.

    Raise ConfigError where nothing is known, or where several GPUs begin so.
    """
    gpu = _gpu(database, who) if who.startswith(_GPU) else ""
    where, value = ("id IN (SELECT run FROM gpus WHERE uuid = ?)", gpu) if gpu else ("node = ?", who)
    rows = database.rows(_RUNS.format(where=where), (value,))
    if not rows:
        message = f"the database has no report of {who[:60]!r}"
        raise ConfigError(message, fix="read reports with `envcheck fleet report DIR --db FILE`, or check the name")
    runs = [_run(database, row, gpu) for row in rows]
    failed = [finding.check for run in runs for finding in run.findings if finding.status == "fail"]
    gpus_of_node = database.rows("SELECT DISTINCT uuid FROM gpus JOIN runs ON run = id WHERE node = ?", (value,))
    return FleetHistory(
        who=gpu or who,
        nodes=[*dict.fromkeys(run.node for run in runs)],
        gpus=[gpu] if gpu else sorted(uuid for (uuid,) in gpus_of_node),
        failed=sum(run.status == "fail" for run in runs),
        checks=dict(Counter(failed).most_common()),
        runs=runs,
    )


def _gpu(database: FleetDatabase, beginning: str) -> str:
    query = "SELECT DISTINCT uuid FROM gpus WHERE substr(uuid, 1, ?) = ? LIMIT 3"
    uuids = [uuid for (uuid,) in database.rows(query, (len(beginning), beginning))]
    if len(uuids) > 1 and beginning not in uuids:
        message = f"several GPUs begin with {beginning!r}: {', '.join(uuids)}"
        raise ConfigError(message, fix="give more of the UUID")
    return beginning if beginning in uuids or not uuids else str(uuids[0])


def _run(database: FleetDatabase, row: tuple[int, str, float | None, str, str, str, str], gpu: str) -> PastRun:
    identity, node, started, status, why, driver, cell = row
    findings = [
        PastFinding(check=check, status=BY_SEVERITY[place], code=code, culprit=culprit, summary=summary)
        for check, place, code, culprit, named, summary in statuses(database, identity)
        if not gpu or gpu in (named, culprit) or gpu in culprit
    ]
    worst = max((BY_SEVERITY.index(finding.status) for finding in findings), default=BY_SEVERITY.index("pass"))
    return PastRun(
        node=node,
        at="" if started is None else dt.datetime.fromtimestamp(started, dt.timezone.utc).isoformat(timespec="seconds"),
        status=BY_SEVERITY[worst] if gpu else status,  # type: ignore[arg-type]
        why="" if gpu else why,
        driver=driver,
        cell=cell,
        findings=findings,
    )


def history_lines(past: FleetHistory) -> Iterator[str]:
    """Yield how often it failed and why, then a line for each run, the newest first."""
    often = ", ".join(f"{check} {counted(times, 'time')}" for check, times in past.checks.items())
    yield f"{past.who}: failed in {past.failed} of {counted(len(past.runs), 'run')}{f': {often}' if often else ''}"
    yield f"on {', '.join(past.nodes)}" if past.gpus == [past.who] else f"GPUs: {', '.join(past.gpus) or 'none'}"
    for run in past.runs[:_SHOWN]:
        found = ", ".join(f"{f.check} [{f.code}] {f.culprit}".strip() for f in run.findings if f.status == run.status)
        yield f"{run.at or 'at an unknown time'}  {run.status}  {found or run.why or run.driver}".rstrip()
    if len(past.runs) > _SHOWN:
        yield f"and {counted(len(past.runs) - _SHOWN, 'older run')}: see --json"
