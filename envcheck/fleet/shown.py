"""The answer for a fleet as lines of 80 columns, and as one page on which nodes that are alike are a row."""

import datetime as dt
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from envcheck.counting import counted, printable
from envcheck.data import rendered
from envcheck.fleet.cover import FleetPlan, KindOfNodes
from envcheck.fleet.groups import ConfigurationDrift, FleetGroup, Outlier
from envcheck.fleet.hostlist import fold, is_name
from envcheck.fleet.summary import BAD, WORDS, BadState, FleetAnswer, FleetReport
from envcheck.matrix.resolver.verdict import FORWARD
from envcheck.reports import phrases
from envcheck.reports.formats.html import document, prose, text
from envcheck.reports.formats.prometheus import Sample

WIDTH: Final = 80
QUIET: Final = ("pass", "skip")
# As many lines a section; the rest is counted, and whole in --json.
MOST: Final = 12


def lines(report: FleetReport) -> Iterator[str]:
    """Yield the lines."""
    yield from wrapped(report.verdict.sentence, "")
    yield from wrapped(f"use now: {report.verdict.good or 'no node'}", "", "         ")
    for state in BAD:
        why_not = _alike(report, state).items()
        yield from section(
            WORDS[state].capitalize(), [f"{names(nodes)}{f': {why}' * (state != 'missing')}" for why, nodes in why_not]
        )
    yield from section("Drift (who differs from most of its group)", [*map(drifted, report.drift)])
    yield from section("Outliers (far from the median of its group)", [*map(outlying, report.outliers)])
    yield from section("Files that are ignored", ignored(report))
    yield from section("Note", report.notes)
    yield from section("Groups", [*map(described, report.groups)])


def ignored(report: FleetReport) -> list[str]:
    """Return a line for each file that says nothing of a node; the others are the reasons of their nodes."""
    return [f"{row.file} {row.reason}: ignored" for row in report.unread if not row.node]


def _alike(report: FleetReport, state: BadState) -> dict[str, list[str]]:
    """Return the nodes in a state by their reason."""
    alike: dict[str, list[str]] = {}
    for node in report.nodes.of(state):
        alike.setdefault(report.reasons.get(node, ""), []).append(node)
    return alike


def names(nodes: Sequence[str]) -> str:
    """Return nodes as a host list; names that no host list can hold are listed as they are."""
    odd = [repr(node) for node in nodes if not is_name(node)]
    return ",".join(filter(None, [fold(filter(is_name, nodes)), *odd]))


def drifted(row: ConfigurationDrift) -> str:
    """Return a drift as a line: the signal, what most have, and who has what else."""
    others = "; ".join(
        f"{names(members)} {'has' if len(members) == 1 else 'have'} {value}" for value, members in row.others.items()
    )
    if row.majority is None:
        return f"{row.signal}: no majority: {others}"
    # A share that is below 1 is no 100 %.
    return f"{row.signal}: {others}; {min(row.share, 0.9999) * 100:.4g} % of the group have {row.majority}"


def outlying(row: Outlier) -> str:
    """Return an outlier as a line: the node, the check, its value against the median."""
    value, median = phrases.quantity(row.value, row.unit), phrases.quantity(row.median, row.unit)
    gpu = f" ({row.gpu})" if row.gpu else ""
    off = f"{row.value / row.median - 1:+.0%}, " if min(row.value, row.median) > 0 else ""
    return f"{names([row.node])} {row.check}{gpu}: {value}, the median is {median}, {off}z {row.z:g}"


def described(group: FleetGroup) -> str:
    """Return a group as a line."""
    driver = "no driver" if group.driver == "none" else f"driver {group.driver}"
    return f"{counted(group.nodes, 'node')}: {group.gpu}, {group.cell}, {driver}"


def section(title: str, items: Sequence[str]) -> Iterator[str]:
    """Yield a title and its items, of many the first; nothing without an item."""
    if not items:
        return
    yield ""
    yield title
    for item in items[:MOST]:
        yield from wrapped(item, "  ")
    if len(items) > MOST:
        yield f"  and {len(items) - MOST:,} more: see --json or --html"


def wrapped(text: str, indent: str, subsequent: str | None = None) -> Iterable[str]:
    """Return a text as lines of 80 columns, without what a terminal could take for more than text."""
    line = " ".join(printable(text).split())
    following = f"{indent}    " if subsequent is None else subsequent
    return textwrap.wrap(line, WIDTH, initial_indent=indent, subsequent_indent=following, break_on_hyphens=False)


def plan_lines(plan: FleetPlan) -> Iterator[str]:
    """Yield the lines."""
    with_cell = sum(cell.nodes for cell in plan.cells)
    head = f"{counted(len(plan.cells), 'published cell')} for {with_cell} of {counted(plan.nodes, 'node')}"
    yield from wrapped(head if plan.cells else "no published cell runs on any node", "")
    for cell in plan.cells:
        where = "; ".join(f"{_kind(plan.kinds[int(place)])} ({verdict})" for place, verdict in cell.verdicts.items())
        yield from wrapped(f"{cell.cell}: {where}", "  ")
        nodes = [name for place in cell.verdicts for name in plan.kinds[int(place)].names]
        yield from wrapped(f"on {names(nodes)}: envcheck pull {cell.cell} --from REPOSITORY", "    ")
        if lack := [n for place, how in cell.verdicts.items() if how == FORWARD for n in plan.kinds[int(place)].names]:
            cuda = cell.cell.split("-")[1].removeprefix("cu")
            install = f"install cuda-compat-{cuda[:-1]}-{cuda[-1]} on {names(lack)}"
            yield from wrapped(f"{install} and put it first on the loader path", "    ")
    without = [
        f"{_kind(plan.kinds[row.kind])}: {row.verdict}: {row.reason}"
        + (f"; `envcheck build {row.buildable}` makes it" if row.buildable else "")
        for row in plan.uncovered
    ]
    yield from section("No published cell", without)
    yield from section("Note", plan.notes)


def _kind(kind: KindOfNodes) -> str:
    arch = ", aarch64" if kind.arch != "x86_64" else ""
    return f"{names(kind.names)} ({' + '.join(kind.gpus)}, driver {kind.driver}{arch})"


def samples(answer: FleetAnswer) -> Iterator[Sample]:
    """Yield the states of all nodes as Prometheus has them."""
    report = answer.report
    for name, count in (("pass", report.nodes.passed), *((bad, len(report.nodes.of(bad))) for bad in BAD)):
        yield "envcheck_fleet_nodes", {"state": name}, float(count), "How many nodes are in a state."
    since = dt.datetime.fromisoformat(report.at).timestamp()
    yield "envcheck_fleet_report_timestamp_seconds", {}, since, "When the reports were read."
    for node, state in answer.states.items():
        yield "envcheck_fleet_node_state", {"node": node, "state": state.state}, 1.0, "The state that a node is in."
        read = state.file.report if state.file else None
        if read and read.ended:
            doc = "When the newest run of a node ended."
            yield "envcheck_fleet_node_run_end_timestamp_seconds", {"node": node}, read.ended, doc
        for check in read.checks if read else ():
            if check.status not in QUIET:
                labels = {"node": node, "check": check.check, "status": check.status, "code": check.code}
                yield "envcheck_fleet_node_check", labels, 1.0, "A check of a node that came to no pass."


_CSS: Final = Path(__file__).with_name("page.css")
# Rows of a table; what is beyond is counted, and whole in --json.
_ROWS: Final = 60


def page(answer: FleetAnswer) -> str:
    """Return the page."""
    report = answer.report
    words, why = _words(answer)
    checks = sorted({check for row in words.values() for check in row})
    kinds = {check: {row.get(check, "absent") for row in words.values()} for check in checks}
    quiet = {*QUIET, "absent"}
    telling = sorted(
        (check for check in checks if len(kinds[check]) > 1 or not kinds[check] <= quiet),
        key=lambda check: kinds[check] <= quiet,
    )
    alike: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for node in sorted(words, key=lambda node: (*BAD, "pass").index(answer.states[node].state)):
        row = tuple(words[node].get(check, "absent") for check in telling)
        alike[answer.states[node].state, row].append(node)
    context = {
        "report": report,
        "counts": [("pass", report.nodes.passed), *((state, len(report.nodes.of(state))) for state in BAD)],
        "reasons": [(state, why, nodes) for state in BAD for why, nodes in _alike(report, state).items()],
        "telling": telling,
        "alike": len(checks) - len(telling),
        "rows": [
            (state, nodes, [(word, why.get((nodes[0], check), "")) for check, word in zip(telling, row, strict=True)])
            for (state, row), nodes in alike.items()
        ],
        "lists": [
            ("Outliers", [*map(outlying, report.outliers)]),
            ("Drift", [*map(drifted, report.drift)]),
            ("Groups", [*map(described, report.groups)]),
            ("Notes", [*ignored(report), *report.notes]),
        ],
        "most": _ROWS,
        "text": text,
        "prose": prose,
        "names": names,
        "counted": counted,
    }
    footer = f"envcheck {report.tool}, {report.schema}, {report.at}"
    body, css = rendered("fleet-page.html.j2", context), _CSS.read_text(encoding="utf-8")
    return document(f"envcheck fleet {report.verdict.status}", body, footer, css)


def _words(answer: FleetAnswer) -> tuple[dict[str, dict[str, str]], dict[tuple[str, str], str]]:
    """Return each node's status by check, "outlier" for a pass far from its group; and why it is no plain pass."""
    why = {(row.node, row.check): outlying(row) for row in answer.report.outliers}
    far = {*why}
    words: dict[str, dict[str, str]] = {}
    for node, state in answer.states.items():
        report = state.file.report if state.file else None
        for check in report.checks if report else ():
            outlier = check.status in ("pass", "warn") and (node, check.check) in far
            words.setdefault(node, {})[check.check] = "outlier" if outlier else check.status
            if check.status not in QUIET:
                why.setdefault((node, check.check), f"{check.code}: {check.summary}" if check.code else check.summary)
    return words, why
