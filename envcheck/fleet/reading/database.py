"""The reports that were read, in SQLite: what is new is added in one transaction, and nothing is read twice.

A run is known by the hash of its report, so that a file that moved is the same run and a file that was written again is
another one. Runs stay when their files are gone: they are the history.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from envcheck.errors import ConfigError, UnavailableError
from envcheck.fleet.reading.one_report import BY_SEVERITY, NodeReport

_APPLICATION: Final = 0x656E7666  # "envf"
_VERSION: Final = 1
_WAIT: Final = 30.0
_TABLES: Final = """
CREATE TABLE runs(id INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE, node TEXT NOT NULL, started REAL, ended REAL,
  status TEXT NOT NULL, why TEXT NOT NULL, gpu TEXT NOT NULL, gpus INTEGER NOT NULL, cell TEXT NOT NULL,
  driver TEXT NOT NULL, arch TEXT NOT NULL, level TEXT NOT NULL, boot TEXT NOT NULL, configuration INTEGER NOT NULL);
CREATE INDEX runs_of_node ON runs(node, started);
CREATE TABLE gpus(uuid TEXT NOT NULL, run INTEGER NOT NULL, PRIMARY KEY(uuid, run)) WITHOUT ROWID;
CREATE TABLE names(id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);
CREATE TABLE configurations(id INTEGER PRIMARY KEY, content TEXT NOT NULL UNIQUE);
CREATE TABLE outcomes(name INTEGER NOT NULL, run INTEGER NOT NULL, status INTEGER NOT NULL, value REAL, unit INTEGER,
  attempts INTEGER, code TEXT, culprit TEXT, gpu TEXT, summary TEXT, PRIMARY KEY(name, run)) WITHOUT ROWID;
CREATE INDEX findings ON outcomes(run) WHERE code IS NOT NULL;
CREATE TABLE curves(name INTEGER NOT NULL, run INTEGER NOT NULL, points TEXT NOT NULL, PRIMARY KEY(name, run))
  WITHOUT ROWID;
CREATE TABLE files(path TEXT PRIMARY KEY, stamp TEXT NOT NULL, modified REAL NOT NULL, node TEXT NOT NULL,
  run INTEGER, note TEXT NOT NULL, problem INTEGER NOT NULL) WITHOUT ROWID;
"""
_RUN: Final = (
    "INSERT INTO runs(digest, node, started, ended, status, why, gpu, gpus, cell, driver, arch, level, boot,"
    " configuration) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
)
_FIX: Final = "name another file with --db, or delete this one: the reports are read again"


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
        facts = (report.gpu, len(report.gpus), report.cell, report.driver, report.arch, report.level, report.boot)
        cursor = self._connection.execute(_RUN, (*head, *facts, number))
        run = cursor.lastrowid or 0
        self._connection.executemany("INSERT OR IGNORE INTO gpus VALUES (?,?)", ((uuid, run) for uuid in report.gpus))
        self._add_outcomes(report, run)
        curves = (
            (self._name(name), run, msgspec.json.encode(points).decode()) for name, points in report.curves.items()
        )
        self._connection.executemany("INSERT OR REPLACE INTO curves VALUES (?,?,?)", curves)
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
        raise ConfigError(message, fix=_FIX) from error
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
        raise ConfigError(message, fix=_FIX)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(
        f"BEGIN IMMEDIATE;{_TABLES}PRAGMA application_id = {_APPLICATION};PRAGMA user_version = {_VERSION};COMMIT;"
    )


def _unavailable(where: str, error: sqlite3.Error) -> UnavailableError | ConfigError:
    name = where or "the database in memory"
    if any(words in str(error) for words in ("not a database", "malformed", "no such table", "no such column")):
        return ConfigError(f"{name} is not a database of envcheck: {error}", fix=_FIX)
    return UnavailableError(
        f"{name}: {error}", fix="check the path, its rights and the free space, and that no other process holds it"
    )
