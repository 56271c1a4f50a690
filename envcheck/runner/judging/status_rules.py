"""The rules that may change an outcome after its judge, in the order in which they apply. Pure.

A judge sees one check's measurements. These rules know more: that the judge contradicts itself, that somebody else
used the GPU, that peer-to-peer is broken, that the check was measured again. Each change of a status is kept with its
rule and reason in `changes`, which every report shows.

OUTCOME_RULES change the outcome of one measurement. ROW_RULES of `runner/attempts.py` compare it with an earlier one of
the same check: a first measurement, an earlier round, an older report.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from envcheck.checks import Change, Outcome, View
from envcheck.runner.judging import busy_gpus, findings, p2p_effects
from envcheck.runner.planning.discover import CheckModule


class Evidence(NamedTuple):
    """What a rule may look at: the check, what judges see, and how the ranks ran (see p2p_effects.KEPT)."""

    found: CheckModule
    view: View
    details: Mapping[str, Any]


class StatusRule(NamedTuple):
    """One rule: its name and reason as reports show them, and what it makes of an outcome."""

    name: str
    reason: str
    apply: Callable[[Outcome, Evidence], Outcome]


OUTCOME_RULES: Final = (
    StatusRule(
        "contradiction",
        "the check contradicts itself, or its value is not a finite number",
        lambda outcome, _: findings.sound(outcome),
    ),
    StatusRule(
        "busy-gpu",
        "other processes used the GPU while its speed was measured",
        lambda outcome, of: busy_gpus.excuse(of.found, of.view, outcome),
    ),
    StatusRule(
        "p2p-hang",
        "the ranks hung until NCCL_P2P_DISABLE=1 was set",
        lambda outcome, of: p2p_effects.hung(outcome, of.details),
    ),
    StatusRule(
        "p2p-disabled",
        "the speed was measured with NCCL_P2P_DISABLE=1, because peer-to-peer is broken",
        lambda outcome, of: p2p_effects.disabled(of.found, outcome, of.details),
    ),
)


def apply(outcome: Any, evidence: Evidence) -> Outcome:
    """Return the outcome after all OUTCOME_RULES, with each change of its status recorded.

    `outcome` is whatever a judge returned; the first rule makes an error of what is not an Outcome.
    """
    changes: list[Change] = []
    for rule in OUTCOME_RULES:
        before = getattr(outcome, "status", "nothing")
        outcome = rule.apply(outcome, evidence)
        if outcome.status != before:
            changes.append(Change(rule.name, str(before), outcome.status, rule.reason))
    decided: Outcome = outcome
    return dataclasses.replace(decided, changes=tuple(changes)) if changes else decided
