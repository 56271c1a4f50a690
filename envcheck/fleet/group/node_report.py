"""The report of the whole group, and that of one of its nodes, made of what all ranks came to. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from msgspec import structs

from envcheck.reports.model import RunReport
from envcheck.runner.judging import judge
from envcheck.runner.schema import FindingRow, GroupFacts, OutcomeRow

# A rank that a text names, and not already with its host in brackets.
_RANK: Final = re.compile(r"\brank (\d+)\b(?! \()")
_RANKS: Final = re.compile(r"\branks? ([0-9]+(?:(?:, | and )[0-9]+)*)")
_NUMBER: Final = re.compile(r"[0-9]+")
FORMED: Final = "group-formed"


def of_group(report: RunReport) -> RunReport:
    """Return the report of the whole group: each rank that it blames, with the name of its node."""
    if report.group is None:
        return report
    group = report.group
    return structs.replace(report, outcomes=[_named(outcome, group) for outcome in report.outcomes])


def of_node(report: RunReport, node: int) -> RunReport:
    """Return the report of one node, which holds its own ranks' measurements.

    What the group was shown to be blamed for elsewhere is no failure of this node. A speed that only others fell short
    of leaves it a pass; any other failure in which it took part says nothing about it: undetermined.
    """
    if report.group is None:
        return report
    group = structs.replace(report.group, node=report.group.nodes[node])
    outcomes = [_of_node(_named(outcome, group), group, node) for outcome in report.outcomes]
    verdict = judge.verdict(outcomes, report.mode, complete=bool(report.ended))
    return structs.replace(report, outcomes=outcomes, verdict=verdict, group=group)


def _named(outcome: OutcomeRow, group: GroupFacts) -> OutcomeRow:
    """Return an outcome whose texts say on which node each rank is."""
    findings = [
        structs.replace(
            finding, summary=_with_nodes(finding.summary, group), culprit=_with_nodes(finding.culprit, group)
        )
        for finding in outcome.findings
    ]
    summary, culprit = _with_nodes(outcome.summary, group), _with_nodes(outcome.culprit, group)
    return structs.replace(outcome, summary=summary, culprit=culprit, findings=findings)


def _with_nodes(text: str, group: GroupFacts) -> str:
    def named(match: re.Match[str]) -> str:
        node = _node_of(int(match[1]), group)
        return match[0] if node is None else f"{match[0]} ({group.nodes[node]})"

    return _RANK.sub(named, text)


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
    about = [finding for finding in _findings(outcome) if finding.status in ("fail", "error")]
    blamed = {finding.culprit: nodes_of(finding.culprit, group) for finding in about}
    if any(not nodes or node in nodes for nodes in blamed.values()):
        return own
    who = ", ".join(dict.fromkeys(group.nodes[other] for nodes in blamed.values() for other in sorted(nodes)))
    if all(finding.remeasure for finding in about):
        return _as(own, "pass", f"this node kept up; {who} did not", "")
    return _as(own, "error", f"undetermined here: the group was disturbed by {who}", f"run the group without {who}")


def _as(outcome: OutcomeRow, status: str, summary: str, remedy: str) -> OutcomeRow:
    """Return an outcome as that of a node which another one is blamed beside."""
    code = "" if status == "pass" else "group.other-node"
    changed = {"status": status, "summary": summary, "remedy": remedy, "code": code, "culprit": ""}
    attempts = [structs.replace(attempt, **changed) if attempt.shown else attempt for attempt in outcome.attempts]
    return structs.replace(outcome, **changed, findings=[], remeasure=False, attempts=attempts)


def _findings(outcome: OutcomeRow) -> list[OutcomeRow] | list[FindingRow]:
    return outcome.findings or [outcome]


def nodes_of(culprit: str, group: GroupFacts) -> set[int]:
    """Return the nodes that a culprit names, by its ranks or by their names; none where it names neither."""
    ranks = [int(number) for listed in _RANKS.findall(culprit) for number in _NUMBER.findall(listed)]
    named = {node for rank in ranks if (node := _node_of(rank, group)) is not None}
    if named:
        return named
    words = set(re.split(r"[\s,()]+", culprit))
    return {number for number, name in enumerate(group.nodes) if name in words}


def blamed(outcomes: Iterable[OutcomeRow], group: GroupFacts) -> dict[str, list[str]]:
    """Return the nodes that failures and errors name, each with the checks that say so."""
    by_node: dict[str, list[str]] = {}
    for outcome in outcomes:
        for finding in _findings(outcome):
            if finding.status in ("fail", "error"):
                for node in sorted(nodes_of(finding.culprit, group)):
                    by_node.setdefault(group.nodes[node], []).append(outcome.id)
    return {node: list(dict.fromkeys(checks)) for node, checks in by_node.items()}


def _node_of(rank: int, group: GroupFacts) -> int | None:
    """Return the node of a rank; None for one that no node has."""
    return next((node for node in range(len(group.ranks)) if rank < sum(group.ranks[: node + 1])), None)
