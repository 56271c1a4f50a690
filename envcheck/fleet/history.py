"""What happened to a node or a GPU before: its runs, how often it failed, and why."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator
from typing import Final, Literal

from envcheck.counting import counted
from envcheck.errors import ConfigError
from envcheck.fleet.database import FleetDatabase
from envcheck.fleet.groups import statuses
from envcheck.fleet.one_report import BY_SEVERITY
from envcheck.runner.schema import Row

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
