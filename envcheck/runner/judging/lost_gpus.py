"""GPUs that the driver lost, in a run that leaves out the check for them: what is left cannot be a pass. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from envcheck.checks import ERROR, FAIL, Outcome, View, undecided, worst
from envcheck.checks.node.support import gpu_readings
from envcheck.node.snapshot import Signal
from envcheck.runner.judging.outcome_fields import fields
from envcheck.runner.schema import OutcomeRow, plain

ID: Final = "lost-gpus"
_CHECK: Final = "gpu-lost"
_FIX: Final = "run the check gpu-lost, which says what to do; drain this node until its GPU answers again"


def row(view: View, outcomes: Mapping[str, OutcomeRow]) -> OutcomeRow | None:
    """Return an error that names each lost GPU where the check gpu-lost did not fail for them; else None.

    Other checks skip a lost GPU, because gpu-lost fails for it.
    """
    earlier = outcomes.get(_CHECK)
    if earlier is not None and earlier.status in (FAIL, ERROR):
        return None
    findings = [
        _finding(view, gpu_readings.label(gpu), gpu.uuid, silent)
        for gpu in view.snapshot.gpus
        if (silent := gpu_readings.lost(gpu))
    ]
    if not findings:
        return None
    outcome = worst(findings, findings[0])
    return OutcomeRow(id=ID, kind="node", **fields(outcome), details=plain(dict(outcome.details)))


def _finding(view: View, label: str, uuid: str, silent: Signal) -> Outcome:
    return undecided(
        f"{label} does not answer ({silent.reason}), and this run left the check {_CHECK} out",
        fix=_FIX,
        code="lost-gpus.left-out",
        culprit=gpu_readings.culprit(view, label),
        gpus=[uuid],
    )
