"""What broken peer-to-peer makes of outcomes: of the probe's own, of a group's that hung, of those that ran without.

Pure, and by what a row of the report keeps, so that an old report is judged alike.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Final

from envcheck.checks import ERROR, FAIL, SKIP, WARN, Outcome, worst
from envcheck.runner.judging import findings
from envcheck.runner.planning.discover import CheckModule
from envcheck.runner.schema import OutcomeRow
from envcheck.runner.worker.p2p_fallback import OFF

KEPT: Final = ("ran_with", "hung")
_SET: Final = [f"{name}={value}" for name, value in OFF.items()]
_WORDS: Final = ", ".join(_SET)
# What an outcome blames that is about one GPU by itself: its pace is its own, whatever groups talk over.
_ALONE: Final = ("device", "devices", "rank")
_FIX: Final = (
    "on bare metal disable ACS on the PCIe bridges and set the IOMMU to pass through (iommu=pt), then look at NVLink "
    f"and fabric manager; until then {_WORDS} has NCCL go through the host's memory"
)


def kept(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a group's end says of peer-to-peer, as its row keeps it in its details."""
    environment = event.get("environment") or {}
    ran_with = [f"{name}={value}" for name, value in environment.items()]
    facts = {"ran_with": ran_with, "hung": event.get("hung")}
    return {name: value for name, value in facts.items() if value}


def lost(module: CheckModule, outcome: Outcome, error: Mapping[str, Any]) -> Outcome:
    """Return a failure that names the pair, where it was the probe that was lost, and while it copied."""
    doing = error.get("doing")
    if not doing or outcome.status != ERROR:
        return outcome
    if not module.check.probe:
        return dataclasses.replace(outcome, summary=f"{outcome.summary}, while it was at: {doing}")
    summary = f"P2P broken: {doing}: the process {error['text']}"
    return Outcome(FAIL, summary, remedy=_FIX, details=outcome.details, code="peer-to-peer.lost", culprit=doing)


def hung(outcome: Outcome, details: Mapping[str, Any]) -> Outcome:
    """Return the outcome of a group that hung until peer-to-peer was switched off: it has not passed."""
    return _hung(outcome, str(details["hung"])) if details.get("hung") else outcome


def disabled(module: CheckModule, outcome: Outcome, details: Mapping[str, Any]) -> Outcome:
    """Return the outcome of a group that ran without peer-to-peer: a speed that fell short for that is not known."""
    if details.get("hung") or details.get("ran_with") != _SET or module.check.probe or outcome.status == SKIP:
        return outcome
    excused = findings.each(outcome, _excused)
    return excused if excused is not outcome else _with_words(outcome)


def _excused(finding: Outcome) -> Outcome:
    """Return a speed that fell short without peer-to-peer as an error; all else stays."""
    if not finding.remeasure or any(word in finding.details for word in _ALONE):
        return finding
    summary = f"measured with {_WORDS}, as peer-to-peer is broken: {finding.summary}"
    unmeasured = dataclasses.replace(finding, remedy=_FIX, remeasure=False)
    return dataclasses.replace(unmeasured, status=ERROR, summary=summary, code="speed.peer-to-peer-off")


def _with_words(outcome: Outcome) -> Outcome:
    return dataclasses.replace(outcome, summary=f"{outcome.summary}; with {_WORDS}")


def _hung(outcome: Outcome, hung: str) -> Outcome:
    if outcome.status in (FAIL, ERROR):
        return dataclasses.replace(outcome, summary=f"{outcome.summary}; with {_WORDS}, for without it: {hung}")
    summary = f"P2P broken: {hung}; with {_WORDS} it is a {outcome.status}: {outcome.summary}"
    broken = Outcome(FAIL, summary, remedy=_FIX, details=outcome.details, code="peer-to-peer.hung")
    return worst([broken, outcome], otherwise=broken) if outcome.status == WARN else broken


def environment(probes: Iterable[str], outcomes: Mapping[str, OutcomeRow]) -> dict[str, str]:
    """Return the environment of groups to come, by what is known: none of a probe that failed is set again."""
    failed_probe = any(i in outcomes and outcomes[i].status == FAIL for i in probes)
    hung = any(row.details.get("hung") for row in outcomes.values())
    return dict(OFF) if failed_probe or hung else {}
