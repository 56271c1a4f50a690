"""Bring the states of nodes, the drift and the outliers of a fleet to one answer, with notes of what else was seen.

Of each node the newest report counts, and a doubt is never a pass.
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Final, NamedTuple

from envcheck import __version__
from envcheck.counting import counted
from envcheck.fleet import groups as grouping
from envcheck.fleet.database import FleetDatabase, IngestResult, KnownFile, statuses
from envcheck.fleet.groups import RunFacts
from envcheck.fleet.hostlist import fold, is_name, natural
from envcheck.fleet.model import (
    CLOCK_SLACK,
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
from envcheck.fleet.one_report import BY_SEVERITY
from envcheck.reports.redact import UNKEYED

_WORST: Final = {"pass": 0, "error": 1, "fail": 2}


class Sighting(NamedTuple):
    """A file of a node. `at` is when the run began, or when the file was written where it cannot be read.

    `run` is None for a file that cannot be read; `ended` and `modified` are seconds since 1970, UTC.
    """

    node: str
    at: float
    status: str
    why: str
    run: int | None = None
    ended: float | None = None
    modified: float | None = None
    path: str = ""


class StateOfNode(NamedTuple):
    """What a node counts as, the reason where it is no pass, and the run that says so.

    `age` is that of a report that did not pass and is older than those that count, else "".
    """

    node: str
    state: NodeState
    why: str
    run: int | None
    age: str = ""


def states(
    sightings: Iterable[Sighting], now: float, max_age: float, expected: Collection[str] = ()
) -> dict[str, StateOfNode]:
    """Return the state of every node that was seen or is expected. `max_age` in seconds."""
    by_node: dict[str, list[Sighting]] = defaultdict(list)
    for sighting in sightings:
        by_node[sighting.node].append(sighting)
    state_of = {node: _state(seen, now, max_age) for node, seen in by_node.items()}
    state_of |= dict(_two_names(state_of, {node: max(one.at for one in seen) for node, seen in by_node.items()}))
    missing = {node: StateOfNode(node, "missing", "no report", None) for node in expected if node not in state_of}
    return state_of | missing


def _two_names(state_of: Mapping[str, StateOfNode], at: Mapping[str, float]) -> Iterator[tuple[str, StateOfNode]]:
    """Yield the nodes that passed under one name and not since then under another: with a domain, or in capitals."""
    alike: dict[str, list[str]] = defaultdict(list)
    for node in state_of:
        alike[node.partition(".")[0].lower()].append(node)
    for names in alike.values():
        bad = sorted((name for name in names if state_of[name].state != "pass"), key=lambda name: at[name])
        bare = [name for name in bad if "." not in name]
        for node in names:
            # Two names with domains may be two nodes.
            others = bare if "." in node else bad
            if state_of[node].state == "pass" and others and at[others[-1]] >= at[node]:
                why = f"{others[-1]}, perhaps the same node, did not pass since: {state_of[others[-1]].why}"
                yield node, StateOfNode(node, "error", why, state_of[node].run)


def span(seconds: float) -> str:
    """Return a time in its largest unit: "5 min", "26 h", "12 days"."""
    for unit, length in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _state(seen: list[Sighting], now: float, max_age: float) -> StateOfNode:
    newest = max(seen, key=lambda one: (one.at, _WORST[one.status], one.run or 0))
    doubt, age = _doubt(newest, now), now - (newest.ended or newest.at)
    if newest.status == "pass" and doubt:
        return StateOfNode(newest.node, "error", doubt, newest.run)
    if newest.status == "pass":
        if age > max_age:
            return StateOfNode(newest.node, "stale", f"the last report is {span(age)} old", newest.run)
        return StateOfNode(newest.node, "pass", "", newest.run)
    state: NodeState = "fail" if newest.status == "fail" else "error"
    return StateOfNode(newest.node, state, newest.why, newest.run, span(age) if age > max_age else "")


def _doubt(newest: Sighting, now: float) -> str:
    """Return why a report that says pass is not believed; "" where it is."""
    if not is_name(newest.node):
        return "no node can have this name"
    last = max(newest.at, newest.ended or newest.at)
    if last > now + CLOCK_SLACK:
        return f"the node's clock is {span(last - now)} ahead: its report is from the future"
    if newest.modified is not None and last > newest.modified + CLOCK_SLACK:
        return f"the node's clock is {span(last - newest.modified)} ahead of the time its file was written"
    return ""


DAY: Final = 86400.0
# Of each run the node, when it began and ended, what it came to, and why.
RunRows = dict[int, tuple[str, float | None, float | None, str, str]]
_SHOWN: Final = 3
# One GPU is blamed where at least this share of the node's failures name it.
_LEAD: Final = 0.5


class FleetQuestion(NamedTuple):
    """The question: `expected` nodes (none: those that reported), the oldest report.

    `now` is seconds since 1970, UTC; `strict` counts drift and outliers as failures.
    """

    now: float
    expected: Collection[str] = ()
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
    sightings = [
        _sighting(file, runs) for file in ingested.files if file.run is not None or (file.problem and file.node)
    ]
    node_states = states(sightings, question.now, question.max_age, question.expected)
    current = {state.run for state in node_states.values() if state.run is not None and state.state != "stale"}
    modified = {file.run: file.modified for file in ingested.files if file.run is not None}
    facts = grouping.run_facts(database, current, modified)
    groups = grouping.grouped(facts)
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
        reasons=_reasons(node_states, blame),
        drift=drift,
        outliers=outliers,
        unread=[UnreadFile(file=f.path, node=f.node, reason=f.note) for f in ingested.files if f.problem],
        notes=[*notes(ingested.files, ingested.empty, sightings, question.expected), *gpu_notes(database, facts)],
        verdict=_verdict(node_states, blame, _deviant(drift, outliers), question),
    )
    return FleetAnswer(report, node_states, groups)


def _runs(database: FleetDatabase) -> RunRows:
    return {row[0]: row[1:] for row in database.each("SELECT id, node, started, ended, status, why FROM runs")}


def _sighting(file: KnownFile, runs: RunRows) -> Sighting:
    if file.run is None:
        why = f"{PurePath(file.path).name} {file.note}"
        return Sighting(file.node, file.modified, "error", why, path=file.path)
    node, started, ended, status, why = runs[file.run]
    at = file.modified if started is None else started
    return Sighting(node, at, status, why, file.run, ended, file.modified, file.path)


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
        rows = [] if state.run is None else statuses(database, state.run)
        failed = [row for row in rows if BY_SEVERITY[row[1]] == "fail"]
        gpus = Counter(row[4] for row in failed if row[4])
        who, count = gpus.most_common(1)[0] if gpus else ("", 0)
        one = bool(who) and len(gpus) == 1 and count >= _LEAD * len(failed)
        by = [f"{row[0]} [{row[2]}]" if row[2] else row[0] for row in failed] or [state.why]
        blame.append(FleetBlame(kind="gpu" if one else "node", who=who if one else node, node=node, by=by))
    return blame


def _reasons(node_states: dict[str, StateOfNode], blame: Iterable[FleetBlame]) -> dict[str, str]:
    blame_of = {one.node: one for one in blame}
    return {
        node: _reason(state, blame_of.get(node))
        for node, state in sorted(node_states.items(), key=lambda item: natural(item[0]))
        if state.state != "pass"
    }


def _reason(state: StateOfNode, mine: FleetBlame | None) -> str:
    old = f"; this report is {state.age} old" if state.age else ""
    if mine is None:
        return f"{state.why}{old}"
    shown = ", ".join(mine.by[:_SHOWN]) + (f" and {len(mine.by) - _SHOWN} more" if len(mine.by) > _SHOWN else "")
    return f"{mine.who}: {shown}{old}" if mine.kind == "gpu" else f"{shown}{old}"


def _deviant(drift: Iterable[ConfigurationDrift], outliers: Iterable[Outlier]) -> set[str]:
    """Return the nodes that differ from the majority of their group, or have a value far from it."""
    nodes = {row.node for row in outliers}
    return nodes.union(*(members for row in drift if row.majority is not None for members in row.others.values()))


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
        status=status, exit_code=code, good=fold(good), blame=blame, sentence=_sentence(counts, len(left_out), status)
    )


def _sentence(counts: Counter[NodeState], deviant: int, status: FleetStatus) -> str:
    total = counts.total()
    parts = [f"{counts['pass']:,} of {total:,} nodes passed"]
    words: dict[NodeState, str] = {"fail": "failed", "error": "undetermined", "missing": "missing", "stale": "stale"}
    parts += [f"{counts[state]:,} {word}" for state, word in words.items() if counts[state]]
    parts += [f"{deviant:,} differ from their group"] if deviant else []
    head = {"pass": "PASS", "fail": "FAIL", "error": "UNDETERMINED"}[status]
    return f"{head}: {', '.join(parts)}" if total else "UNDETERMINED: no file is a report"


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
    yield from (f"{file.path} {file.note}" for file in files if file.run is None and not file.problem)


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
