"""A speed that was measured beside somebody else's work is not this machine's: it is told, and fails nobody. Pure."""

from __future__ import annotations

import dataclasses
from typing import Final

from envcheck.checks import FAIL, WARN, Outcome, View, undecided
from envcheck.checks.node import _tenants
from envcheck.runner.discover import Found

_FIX: Final = "end what check gpu-in-use names, or run when the node is drained; then measure again"


def excuse(found: Found, view: View, outcome: Outcome) -> Outcome:
    """Return a performance that fell short while others were on its GPUs as what it is: not told."""
    if found.kind != "env" or not found.check.performance or outcome.status not in (FAIL, WARN):
        return outcome
    others = _others(view, outcome)
    if not others:
        return outcome
    said = f"measured while {'; '.join(tenant.told() for tenant in others[:3])}"
    if outcome.status == WARN:
        return dataclasses.replace(outcome, summary=f"{outcome.summary}; {said}")
    return undecided(f"{said}: {outcome.summary}", fix=_FIX, **{**outcome.details, "tenants": [t.uuid for t in others]})


def _others(view: View, outcome: Outcome) -> list[_tenants.Tenant]:
    """Return the tenants of the GPU that the outcome blames, or of all that torch sees where it blames none."""
    if view.mode != "gpu":
        return []
    ours = {device.get("uuid") for device in view.environment.get("devices") or [] if isinstance(device, dict)}
    blamed = (
        {str(outcome.details["device"])} if outcome.details.get("device") else set(outcome.details.get("gpus") or ())
    )
    everybody = [tenant for tenant in _tenants.tenants(view) if not ours - {None} or tenant.uuid in ours]
    return [tenant for tenant in everybody if not blamed or tenant.uuid in blamed]
