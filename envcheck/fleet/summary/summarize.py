"""Bring the states, the drift and the outliers of a fleet to one answer."""

from __future__ import annotations

import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

from envcheck import __version__
from envcheck.counting import counted
from envcheck.fleet.hostlist import fold, is_name, natural
from envcheck.fleet.reading.database import FleetDatabase, KnownFile
from envcheck.fleet.reading.ingest import IngestResult
from envcheck.fleet.reading.one_report import BY_SEVERITY
from envcheck.fleet.summary import groups as grouping
from envcheck.fleet.summary.model import (
    ConfigurationDrift,
    FleetBlame,
    FleetReport,
    FleetStatus,
    FleetVerdict,
    NodeState,
    NodeStates,
    Outlier,
    UnreadFile,
)
from envcheck.fleet.summary.states import Sighting, StateOfNode, states

DAY: Final = 86400.0
_SHOWN: Final = 3
# One GPU is blamed where at least this share of the node's failures name it.
_LEAD: Final = 0.5


class FleetQuestion(NamedTuple):
    """The question: `expected` nodes (none: those that reported), the axes of a group, the oldest report.

    `now` is seconds since 1970, UTC; `strict` counts drift and outliers as failures.
    """

    now: float
    expected: Collection[str] = ()
    by: Sequence[str] = grouping.AXES
    max_age: float = DAY
    strict: bool = False


class FleetAnswer(NamedTuple):
    """The document, and what a page draws besides: each node's state with its run, and the groups."""

    report: FleetReport
    states: dict[str, StateOfNode]
    groups: list[grouping.GroupRuns]


def summarize(database: FleetDatabase, ingested: IngestResult, question: FleetQuestion) -> FleetAnswer:
    """Return what the reports of a fleet say together."""
    runs = _runs(database)
    sightings = [_sighting(file, runs) for file in ingested.files if file.run is not None or file.problem]
    node_states = states(sightings, question.now, question.max_age, question.expected)
    current = {state.run for state in node_states.values() if state.run is not None and state.state != "stale"}
    modified = {file.run: file.modified for file in ingested.files if file.run is not None}
    groups = grouping.grouped(grouping.run_facts(database, current, modified), question.by)
    deviating = [*grouping.drifts(database, groups), *grouping.measured(database, groups)]
    drift = [row for row in deviating if isinstance(row, ConfigurationDrift)]
    outliers = sorted((row for row in deviating if isinstance(row, Outlier)), key=lambda row: -abs(row.z))
    blame = _blame(database, node_states)
    report = FleetReport(
        tool=__version__,
        at=dt.datetime.fromtimestamp(question.now, dt.timezone.utc).isoformat(timespec="seconds"),
        files=len(ingested.files),
        read=ingested.read,
        groups=[group.group for group in groups],
        nodes=_node_states(node_states),
        reasons={
            node: _reason(node_states[node], blame)
            for node in sorted(node_states, key=natural)
            if node_states[node].state != "pass"
        },
        drift=drift,
        outliers=outliers,
        unread=[UnreadFile(file=f.path, node=f.node, reason=f.note) for f in ingested.files if f.problem],
        notes=[*_notes(ingested.files, node_states, question.expected)],
        verdict=_verdict(node_states, blame, _deviant(drift, outliers), question),
    )
    return FleetAnswer(report, node_states, groups)


def _runs(database: FleetDatabase) -> dict[int, tuple[str, float | None, float | None, str, str]]:
    return {row[0]: row[1:] for row in database.each("SELECT id, node, started, ended, status, why FROM runs")}


def _sighting(file: KnownFile, runs: dict[int, tuple[str, float | None, float | None, str, str]]) -> Sighting:
    if file.run is None:
        return Sighting(file.node, file.modified, "error", file.note)
    node, started, ended, status, why = runs[file.run]
    return Sighting(node, file.modified if started is None else started, status, why, file.run, ended, file.modified)


def _node_states(state_of: dict[str, StateOfNode]) -> NodeStates:
    nodes: dict[NodeState, list[str]] = defaultdict(list)
    for node in sorted(state_of, key=natural):
        nodes[state_of[node].state].append(node)
    return NodeStates(
        passed=len(nodes["pass"]),
        fail=nodes["fail"],
        error=nodes["error"],
        missing=nodes["missing"],
        stale=nodes["stale"],
    )


def _blame(database: FleetDatabase, state_of: dict[str, StateOfNode]) -> list[FleetBlame]:
    blame = []
    for node in sorted(state_of, key=natural):
        state = state_of[node]
        if state.state != "fail":
            continue
        rows = [] if state.run is None else grouping.statuses(database, state.run)
        failed = [row for row in rows if BY_SEVERITY[row[1]] == "fail"]
        gpus = Counter(row[4] for row in failed if row[4])
        who, count = gpus.most_common(1)[0] if gpus else ("", 0)
        one = bool(who) and len(gpus) == 1 and count >= _LEAD * len(failed)
        by = [f"{row[0]} [{row[2]}]" if row[2] else row[0] for row in failed] or [state.why]
        blame.append(FleetBlame(kind="gpu" if one else "node", who=who if one else node, node=node, by=by))
    return blame


def _reason(state: StateOfNode, blame: Iterable[FleetBlame]) -> str:
    mine = next((one for one in blame if one.node == state.node), None) if state.state == "fail" else None
    if mine is None:
        return state.why
    shown = ", ".join(mine.by[:_SHOWN]) + (f" and {len(mine.by) - _SHOWN} more" if len(mine.by) > _SHOWN else "")
    return f"{mine.who}: {shown}" if mine.kind == "gpu" else shown


def _deviant(drift: Iterable[ConfigurationDrift], outliers: Iterable[Outlier]) -> set[str]:
    """Return the nodes that differ from the majority of their group, or have a value far from it."""
    nodes = {row.node for row in outliers}
    return nodes.union(*(members for row in drift if row.majority is not None for members in row.others.values()))


def _notes(files: Iterable[KnownFile], state_of: dict[str, StateOfNode], expected: Collection[str]) -> Iterable[str]:
    first: dict[int, str] = {}
    for file in files:
        if file.run is None:
            if not file.problem:
                yield f"{file.path} {file.note}"
        elif file.run in first:
            yield f"{file.path} is the same report as {first[file.run]}"
        else:
            first[file.run] = file.path
    unexpected = [node for node in state_of if expected and node not in expected]
    if unexpected:
        names = fold(filter(is_name, unexpected))
        yield f"--expect does not name {counted(len(unexpected), 'node')} that reported: {names or 'names of no host'}"


def _verdict(
    state_of: dict[str, StateOfNode], blame: list[FleetBlame], deviant: set[str], question: FleetQuestion
) -> FleetVerdict:
    expected = set(question.expected) or set(state_of)
    counts = Counter(state.state for state in state_of.values())
    left_out = deviant if question.strict else set()
    good = {node for node, state in state_of.items() if state.state == "pass"} & expected - left_out
    undetermined = counts["error"] + counts["missing"] + counts["stale"]
    code = 1 if counts["fail"] or left_out else 3 if undetermined or not counts["pass"] else 0
    status: FleetStatus = "fail" if code == 1 else "error" if code else "pass"
    return FleetVerdict(
        status=status,
        exit_code=code,
        good=fold(good),
        blame=blame,
        sentence=_sentence(counts, len(left_out), status),
    )


def _sentence(counts: Counter[NodeState], deviant: int, status: FleetStatus) -> str:
    total = counts.total()
    parts = [f"{counts['pass']:,} of {total:,} nodes passed"]
    words: dict[NodeState, str] = {"fail": "failed", "error": "undetermined", "missing": "missing", "stale": "stale"}
    parts += [f"{counts[state]:,} {word}" for state, word in words.items() if counts[state]]
    parts += [f"{deviant:,} differ from their group"] if deviant else []
    head = {"pass": "PASS", "fail": "FAIL", "error": "UNDETERMINED"}[status]
    return f"{head}: {', '.join(parts)}" if total else "UNDETERMINED: no report of a node"
