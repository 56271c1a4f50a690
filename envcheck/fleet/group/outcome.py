"""What the ranks of all nodes came to, of the whole group and of one of its nodes, and whom it blames. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import structs

from envcheck.checks.support import control_group
from envcheck.fleet.one_report import FORMED, node_in, nodes_of
from envcheck.reports.model import RunReport
from envcheck.runner import judging
from envcheck.runner.outcomes import as_finding
from envcheck.runner.schema import FindingRow, GroupFacts, OutcomeRow
from envcheck.runner.worker import group_ending


def broken(parts: Mapping[int, Mapping[str, Any]], lost: Mapping[int, str], names: Sequence[str]) -> str:
    """Return why the group cannot measure: a node is lost, or its torch cannot be imported; "" where it can."""
    for node, why in sorted(lost.items()):
        return f"{names[node]} is lost: {why}"
    for node, answer in sorted(parts.items()):
        if answer.get("error"):
            return f"torch cannot be imported on {names[node]}: {answer['error']}"
    return ""


def own(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a node gives the others of a check that its ranks have done, or were lost in."""
    failed = event.get("error") is not None
    logs = [str(log)[-4000:] if failed else "" for log in event["logs"]]
    kept = {name: event.get(name) for name in ("ranks", "error", "seconds", "body", "progress")}
    return {**kept, "logs": logs, "throttled": event.get("kept", {}).get("throttled")}


def whole(
    event: Mapping[str, Any],
    parts: Mapping[int, Mapping[str, Any]],
    lost: Mapping[int, str],
    ranks: Sequence[int],
    names: Sequence[str],
) -> dict[str, Any]:
    """Return this node's event with the ranks of all nodes; its error names the rank and node the group was lost by."""
    measured: list[Any] = []
    logs: list[str] = []
    for node, here in enumerate(ranks):
        answer = parts.get(node, {})
        measured += [*(answer.get("ranks") or []), *[None] * here][:here]
        logs += [*(answer.get("logs") or []), *[""] * here][:here]
    seconds = [float(answer.get("seconds") or 0.0) for answer in parts.values()]
    body = [float(answer.get("body") or 0.0) for answer in parts.values()]
    told: list[Any] = [answer.get("throttled") for answer in parts.values()]
    held = [one for one in told if control_group.measured(one)]
    # A CPU quota on any node holds all of them up.
    throttled = {"throttled": max(held, key=lambda one: one["share"])} if held else {}
    of_all = {"ranks": measured, "logs": logs, "kept": {**event.get("kept", {}), **throttled}}
    error = blamed(parts, lost, ranks, names)
    return {**event, **of_all, "error": error, "seconds": max(seconds), "body": max(body)}


def blamed(
    parts: Mapping[int, Mapping[str, Any]], lost: Mapping[int, str], ranks: Sequence[int], names: Sequence[str]
) -> dict[str, Any] | None:
    """Return {rank, text} of who lost the group: a lost node, a rank with a cause, or the one that came least far."""
    for node, why in sorted(lost.items()):
        if node not in parts:
            return {"rank": sum(ranks[:node]), "text": f"is lost with its node {names[node]}: {why}"}
    errors = [
        (node, answer["error"]) for node, answer in sorted(parts.items()) if isinstance(answer.get("error"), dict)
    ]
    if not errors:
        return None
    causes = [one for one in errors if not one[1].get("hung") and not group_ending.waited(str(one[1].get("text")))]
    if causes:
        node, error = causes[0]
        return {**error, "text": f"{error['text']} (on {names[node]})"}
    culprit = _behind(parts, ranks)
    if culprit is not None:
        node = next(node for node in range(len(ranks)) if culprit["rank"] < sum(ranks[: node + 1]))
        waits = f"; rank {errors[0][1]['rank']} (on {names[errors[0][0]]}) waited for it: {errors[0][1]['text']}"
        return {"rank": culprit["rank"], "text": f"{culprit['why']} (on {names[node]}){waits}", "hung": True}
    node, error = errors[0]
    return {**error, "text": f"{error['text']} (on {names[node]})"}


def _behind(parts: Mapping[int, Mapping[str, Any]], ranks: Sequence[int]) -> dict[str, Any] | None:
    running, others = [], []
    for node, answer in sorted(parts.items()):
        first = sum(ranks[:node])
        for number, (state, stage, begun) in enumerate(answer.get("progress") or []):
            if state:
                running.append(group_ending.ObservedRank(first + number, state, stage, begun))
            else:
                others.append((stage, begun))
    return group_ending.culprit(running, others)


def of_group(report: RunReport) -> RunReport:
    """Return the report of the whole group: each rank that it blames, with the name of its node."""
    if report.group is None:
        return report
    group = report.group
    return structs.replace(report, outcomes=[_named(outcome, group) for outcome in report.outcomes])


def of_node(report: RunReport, node: int) -> RunReport:
    """Return one node's report: others' slowness is its pass, and what else others are blamed for is undetermined."""
    if report.group is None:
        return report
    group = structs.replace(report.group, node=report.group.nodes[node])
    outcomes = [_named(_of_node(outcome, group, node), group) for outcome in report.outcomes]
    verdict = judging.verdict(outcomes, report.mode, complete=bool(report.ended))
    return structs.replace(report, outcomes=outcomes, verdict=verdict, group=group)


def _named(outcome: OutcomeRow, group: GroupFacts) -> OutcomeRow:
    def of_rank(match: re.Match[str]) -> str:
        node = node_in(int(match[1]), group)
        return match[0] if node is None else f"{match[0]} ({group.nodes[node]})"

    def told(row: OutcomeRow | FindingRow) -> dict[str, str]:
        # A rank that a text names, and not already with its host in brackets.
        return {name: re.sub(r"\brank (\d+)\b(?! \()", of_rank, getattr(row, name)) for name in ("summary", "culprit")}

    findings = [structs.replace(finding, **told(finding)) for finding in outcome.findings]
    return structs.replace(outcome, **told(outcome), findings=findings)


def _of_node(outcome: OutcomeRow, group: GroupFacts, node: int) -> OutcomeRow:
    first = sum(group.ranks[:node])
    here = slice(first, first + group.ranks[node]) if group.ranks else slice(0)
    own = structs.replace(
        outcome,
        ranks=outcome.ranks[here],
        details={} if outcome.id != FORMED else outcome.details,
        attempts=[structs.replace(attempt, ranks=attempt.ranks[here]) for attempt in outcome.attempts],
    )
    if outcome.status not in ("fail", "error") or outcome.id == FORMED:
        return own
    findings = outcome.findings or [as_finding(outcome)]
    # Who gave no answer beside a failure is not to blame for it.
    about = [finding for finding in findings if finding.status == outcome.status]
    blamed_nodes = {finding.culprit: nodes_of(finding.culprit, group) for finding in about}
    if any(not nodes or node in nodes for nodes in blamed_nodes.values()):
        return own
    who = ", ".join(dict.fromkeys(group.nodes[other] for nodes in blamed_nodes.values() for other in sorted(nodes)))
    if all(finding.remeasure for finding in about) and not any(finding.status == "error" for finding in findings):
        return _as(own, "pass", f"this node kept up; {who} did not", "")
    return _as(own, "error", f"undetermined here: the group was disturbed by {who}", f"run the group without {who}")


def _as(outcome: OutcomeRow, status: str, summary: str, remedy: str) -> OutcomeRow:
    code = "" if status == "pass" else "group.other-node"  # fleet.one_report.OTHER_NODE
    changed = {"status": status, "summary": summary, "remedy": remedy, "code": code, "culprit": ""}
    attempts = [structs.replace(attempt, **changed) if attempt.shown else attempt for attempt in outcome.attempts]
    return structs.replace(outcome, **changed, findings=[], remeasure=False, attempts=attempts)
