"""One answer for a fleet: of each node the newest report counts, and a doubt is never a pass."""

import datetime as dt
import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec

from envcheck import __version__
from envcheck.counting import counted
from envcheck.fleet.files import FleetFile
from envcheck.fleet.groups import CLOCK_SLACK, ConfigurationDrift, FleetGroup, Outlier, deviating, grouped
from envcheck.fleet.hostlist import fold, is_name, natural
from envcheck.fleet.one_report import BY_SEVERITY, OTHER_NODE, NodeReport
from envcheck.reports.redact import UNKEYED
from envcheck.runner.schema import Row, VerdictStatus

NodeState = Literal["pass", "fail", "error", "missing", "stale"]
BadState = Literal["fail", "error", "missing", "stale"]
# The states that are no pass, the worst first.
WORDS: Final[dict[BadState, str]] = {"fail": "failed", "error": "undetermined", "missing": "missing", "stale": "stale"}
BAD: Final = tuple(WORDS)
_SHOWN: Final = 3
# Seconds between the ends of a group's reports: a member may wait this long for the others, and its clock be wrong.
_ONE_RUN: Final = CLOCK_SLACK + 600.0
# One GPU is blamed where at least this share of the node's failures name it.
_LEAD: Final = 0.5


class NodeStates(Row, frozen=True, kw_only=True):
    """How many nodes passed, and which did not. `error` are undetermined."""

    passed: int = msgspec.field(name="pass")
    fail: list[str]
    error: list[str]
    missing: list[str]
    stale: list[str]

    def of(self, state: BadState) -> list[str]:
        """Return the nodes in a state."""
        return list(getattr(self, state))


class UnreadFile(Row, frozen=True, kw_only=True):
    """A file that is not a report that can be read; `node` as its name says, "" for one that is ignored."""

    file: str
    node: str
    reason: str


class FleetBlame(Row, frozen=True, kw_only=True):
    """What failed: a node, or one GPU of it; `by` are the checks with their codes."""

    kind: Literal["node", "gpu"]
    who: str
    node: str
    by: list[str]


class FleetVerdict(Row, frozen=True, kw_only=True):
    """What the fleet came to; `good` is a Slurm host list of the nodes to use now."""

    status: VerdictStatus
    exit_code: int
    good: str
    blame: list[FleetBlame]
    sentence: str


class FleetReport(Row, frozen=True, kw_only=True):
    """The answer. `reasons` has a line for each node that did not pass; `notes` a line for what else was noticed."""

    schema: Literal["envcheck/fleet/1"] = "envcheck/fleet/1"
    tool: str
    at: str
    files: int
    groups: list[FleetGroup]
    nodes: NodeStates
    reasons: dict[str, str]
    drift: list[ConfigurationDrift]
    outliers: list[Outlier]
    unread: list[UnreadFile]
    notes: list[str]
    verdict: FleetVerdict


class StateOfNode(NamedTuple):
    """What a node counts as, and why; `age` is of a report that did not pass and is older than those that count."""

    state: NodeState
    why: str
    file: FleetFile | None = None
    age: str = ""


def states(
    files: Iterable[FleetFile], now: float, max_age: float, expected: Collection[str] = ()
) -> dict[str, StateOfNode]:
    """Return the state of every node that has a file or is expected. `max_age` in seconds."""
    newest: dict[str, FleetFile] = {}
    for file in files:
        if file.node:
            newest[file.node] = max(newest.get(file.node, file), file, key=_order)
    state_of = {node: _state(file, now, max_age) for node, file in newest.items()}
    return state_of | {node: StateOfNode("missing", "no report") for node in expected if node not in state_of}


def _order(file: FleetFile) -> tuple[float, int]:
    """Return what orders the files of a node: of two of one moment the worse is the later."""
    return file.at, BY_SEVERITY.index(file.report.status if file.report else "error")


def under_one_name(files: Sequence[FleetFile], expected: Collection[str] = ()) -> list[FleetFile]:
    """Return the files with one name a node: n1, n1.site and N1 are one, by its name in `expected`, else its shortest.

    Names with two domains may be two nodes, two names that are expected are, and they stay as they are.
    """

    def short(name: str) -> str:
        return name.partition(".")[0].lower()

    called: dict[str, str] = {}
    for _, alike in itertools.groupby(sorted({file.node for file in files}.union(expected), key=short), short):
        names = {*alike}
        domains = {name.lower() for name in names if "." in name}
        if len(names) > 1 and len(domains) <= 1 and len(names.intersection(expected)) <= 1:
            called |= dict.fromkeys(names, min(names, key=lambda name: (name not in expected, len(name), name)))
    return [file._replace(node=called[file.node]) if file.node in called else file for file in files]


def with_groups(files: Sequence[FleetFile]) -> list[FleetFile]:
    """Return the files with what group.json beside them says: whom it blames; whom those alone disturbed passed.

    A node that is to blame and has left no report of the group is undetermined by group.json itself.
    """
    reports = [(file, file.report) for file in files if file.report and file.report.group]
    groups = {(Path(file.path).parent, whole.group): whole for file, whole in reports if whole.blamed}
    members: dict[tuple[bytes, str], list[NodeReport]] = defaultdict(list)
    for _, report in reports:
        members[report.group, report.member].append(report)
    lost = [
        # A copy of the file was written later than what it says happened.
        FleetFile(file.path, min(file.modified, whole.last or file.modified), node, None, f"says of it: {why}")
        for file, whole in reports
        for node, why in whole.blamed
        if not any(_of_one_run(report, whole) for report in members[whole.group, node])
    ]
    return [_told(file, groups) if file.report and file.report.group else file for file in files] + lost


def _told(file: FleetFile, groups: Mapping[tuple[Path, bytes], NodeReport]) -> FleetFile:
    report = file.report
    whole = groups.get((Path(file.path).parent, report.group)) if report and report.status == "error" else None
    if report and whole and _of_one_run(report, whole):
        why = dict(whole.blamed).get(report.member)
        if why:
            return file._replace(report=report._replace(why=why))
        if report.excusable and {check.code for check in report.checks if check.status == "error"} == {OTHER_NODE}:
            return file._replace(report=report._replace(status="pass"))
    return file


def _of_one_run(report: NodeReport, group: NodeReport) -> bool:
    """Tell whether a member's report and that of its group are of one time: not every launcher tells runs apart."""
    own, whole = (report.started, group.started) if report.ended is None else (report.ended, group.last)
    return own is not None and whole is not None and abs(own - whole) <= _ONE_RUN


def span(seconds: float) -> str:
    """Return a time in its largest unit: "5 min", "26 h", "12 days"."""
    for unit, length in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _state(file: FleetFile, now: float, max_age: float) -> StateOfNode:
    report = file.report
    age = now - ((report and report.ended) or file.at)
    old = span(age) if age > max_age else ""
    if report is None:
        return StateOfNode("error", f"{Path(file.path).name} {file.note}", file, old)
    if report.status != "pass":
        return StateOfNode(report.status, report.why, file, old)
    doubt = _doubt(file, max(file.at, report.ended or file.at), now)
    if doubt:
        return StateOfNode("error", doubt, file)
    return StateOfNode("stale", f"the last report is {old} old", file) if old else StateOfNode("pass", "", file)


def _doubt(file: FleetFile, last: float, now: float) -> str:
    """Return why a report that says pass is not believed; "" where it is. `last` is the latest time that it names."""
    if not is_name(file.node):
        return "no node can have this name"
    if last > now + CLOCK_SLACK:
        return f"the node's clock is {span(last - now)} ahead: its report is from the future"
    if last > file.modified + CLOCK_SLACK:
        return f"the node's clock is {span(last - file.modified)} ahead of the time its file was written"
    return ""


class FleetQuestion(NamedTuple):
    """The question: `expected` nodes (none: those that reported), and the oldest report, in seconds."""

    now: float
    expected: Collection[str] = ()
    max_age: float = 86400.0
    strict: bool = False
    places: Sequence[Path] = ()


class FleetAnswer(NamedTuple):
    """The document, and each node's state, with the report that a page draws."""

    report: FleetReport
    states: dict[str, StateOfNode]


def summarize(files: Sequence[FleetFile], question: FleetQuestion) -> FleetAnswer:
    """Return what the reports of a fleet say together."""
    count, files = len(files), under_one_name(with_groups(files), question.expected)
    found = states(files, question.now, question.max_age, question.expected)
    node_states = {node: found[node] for node in sorted(found, key=natural)}
    current = [state.file for state in node_states.values() if state.file and state.state != "stale"]
    groups = grouped(current)
    different = [*deviating(members for _, members in groups)]
    drift = [row for row in different if isinstance(row, ConfigurationDrift)]
    outliers = sorted((row for row in different if isinstance(row, Outlier)), key=lambda row: -abs(row.z))
    blame = [_blame(node, state) for node, state in node_states.items() if state.state == "fail"]
    unlike = [members for row in drift if row.majority is not None for members in row.others.values()]
    deviant = {row.node for row in outliers}.union(*unlike)
    report = FleetReport(
        tool=__version__,
        at=dt.datetime.fromtimestamp(question.now, dt.timezone.utc).isoformat(timespec="seconds"),
        files=count,
        groups=[group for group, _ in groups],
        nodes=NodeStates(
            passed=sum(state.state == "pass" for state in node_states.values()),
            **{bad: [node for node, state in node_states.items() if state.state == bad] for bad in BAD},
        ),
        reasons=_reasons(node_states, blame),
        drift=drift,
        outliers=outliers,
        unread=[UnreadFile(file=f.path, node=f.node, reason=f.note) for f in files if f.report is None],
        notes=[*_notes(files, current, question)],
        verdict=_verdict(node_states, blame, deviant if question.strict else set(), question.expected),
    )
    return FleetAnswer(report, node_states)


def _blame(node: str, state: StateOfNode) -> FleetBlame:
    checks = state.file.report.checks if state.file and state.file.report else ()
    failed = [check for check in checks if check.status == "fail"]
    gpus = Counter(check.gpu for check in failed if check.gpu)
    one = len(gpus) == 1 and gpus.total() >= _LEAD * len(failed)
    by = [f"{check.check} [{check.code}]" if check.code else check.check for check in failed] or [state.why]
    return FleetBlame(kind="gpu" if one else "node", who=next(iter(gpus)) if one else node, node=node, by=by)


def _reasons(node_states: Mapping[str, StateOfNode], blame: Iterable[FleetBlame]) -> dict[str, str]:
    why = {node: state.why for node, state in node_states.items() if state.state != "pass"}
    for one in blame:
        more = f" and {len(one.by) - _SHOWN} more" if len(one.by) > _SHOWN else ""
        who = f"{one.who}: " if one.kind == "gpu" else ""
        why[one.node] = f"{who}{', '.join(one.by[:_SHOWN])}{more}"
    old = {node: f"; this report is {state.age} old" for node, state in node_states.items() if state.age}
    return {node: f"{reason}{old.get(node, '')}" for node, reason in why.items()}


def _verdict(
    state_of: Mapping[str, StateOfNode], blame: list[FleetBlame], left_out: set[str], expected: Collection[str]
) -> FleetVerdict:
    """Say what the states come to; `left_out` differ from the majority of their group, which --strict does not pass."""
    counts = Counter(state.state for state in state_of.values())
    good = {node for node, state in state_of.items() if state.state == "pass"} & set(expected or state_of) - left_out
    undetermined = counts["error"] + counts["missing"] + counts["stale"]
    code = 1 if counts["fail"] or left_out else 3 if undetermined or not counts["pass"] else 0
    status: VerdictStatus = "fail" if code == 1 else "error" if code else "pass"
    return FleetVerdict(
        status=status, exit_code=code, good=fold(good), blame=blame, sentence=_sentence(counts, len(left_out), status)
    )


def _sentence(counts: Counter[NodeState], deviant: int, status: VerdictStatus) -> str:
    total = counts.total()
    parts = [f"{counts['pass']:,} of {total:,} nodes passed"]
    parts += [f"{counts[state]:,} {word}" for state, word in WORDS.items() if counts[state]]
    parts += [f"{deviant:,} differ from their group"] if deviant else []
    head = {"pass": "PASS", "fail": "FAIL", "error": "UNDETERMINED"}[status]
    return f"{head}: {', '.join(parts)}" if total else "UNDETERMINED: no file is a report"


def _notes(files: Sequence[FleetFile], current: Iterable[FleetFile], question: FleetQuestion) -> Iterator[str]:
    """Yield places without a file, nodes that nobody expects or that alone lack a GPU, and GPUs that two nodes have."""
    for place in question.places:
        if place.is_dir() and not any(Path(file.path).is_relative_to(place.absolute()) for file in files):
            yield f"{place}: no *.json in it; write reports with `envcheck run --output DIR/`"
    unexpected = {file.node for file in files if file.node} - {*question.expected}
    if question.expected and unexpected:
        names = fold(filter(is_name, unexpected)) or "names of no host"
        yield f"--expect does not name {counted(len(unexpected), 'node')} that reported: {names}"
    nodes_of: dict[str, list[str]] = defaultdict(list)
    without, others = [], 0
    for file in current:
        gpus = file.report.gpus if file.report else ()
        others += bool(gpus)
        without += [file.node] if file.report and not gpus and is_name(file.node) else []
        for uuid in gpus:
            nodes_of[uuid].append(file.node)
    if without and others:
        others_have = f"{counted(others, 'other node')} {'has' if others == 1 else 'have'} one"
        yield f"no GPU on {fold(without)}, and {others_have}: `envcheck run --require-gpu` fails without"
    for uuid, nodes in nodes_of.items():
        if len({*nodes}) > 1 and not uuid.startswith(UNKEYED):
            listed = ", ".join(nodes[:_SHOWN]) + (" and others" if len(nodes) > _SHOWN else "")
            yield f"{uuid} is in the reports of {listed}: it was moved, or a report is a copy"
