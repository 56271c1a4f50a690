"""A speed measured while other processes use the GPU is reported and does not fail the check. Pure."""

from __future__ import annotations

import dataclasses
from typing import Final

from envcheck.checks import ERROR, FAIL, WARN, Outcome, View
from envcheck.checks.node.support import gpu_users
from envcheck.runner.judging import findings
from envcheck.runner.planning.discover import CheckModule

_FIX: Final = "end the processes that gpu-in-use names, or drain the node; then run again"


def excuse(module: CheckModule, view: View, outcome: Outcome) -> Outcome:
    """Return each speed that fell short while others were on its GPU as what it is: not known. All else stays."""
    if module.kind != "env" or not module.check.performance or outcome.status not in (FAIL, WARN):
        return outcome
    return findings.each(outcome, lambda finding: _excused(view, finding))


def _excused(view: View, finding: Outcome) -> Outcome:
    slow = finding.status == WARN or finding.remeasure
    others = _others(view, finding) if slow else []
    if not others:
        return finding
    condition = f"measured while {'; '.join(user.text() for user in others[:3])}"
    if finding.status == WARN:
        return dataclasses.replace(finding, summary=f"{finding.summary}; {condition}")
    return dataclasses.replace(
        finding,
        status=ERROR,
        code="speed.gpu-in-use",
        summary=f"{condition}: {finding.summary}",
        remedy=_FIX,
        remeasure=False,
        details={**finding.details, "tenants": [user.uuid for user in others]},
    )


def _others(view: View, outcome: Outcome) -> list[gpu_users.GpuUser]:
    """Return the users of the GPU that the outcome blames, or of all that torch sees where it blames none."""
    if view.mode != "gpu":
        return []
    own_gpus = {device.get("uuid") for device in view.environment.get("devices") or [] if isinstance(device, dict)}
    blamed = (
        {str(outcome.details["device"])} if outcome.details.get("device") else set(outcome.details.get("gpus") or ())
    )
    everybody = [user for user in gpu_users.users(view) if not own_gpus - {None} or user.uuid in own_gpus]
    return [user for user in everybody if not blamed or user.uuid in blamed]
