"""What is known of checks without their measurements: too few GPUs or ranks, and what the snapshot alone says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from envcheck.checks import ERROR, FAIL, Limit, Outcome, View, failed, gpu_readings, undecided, worst
from envcheck.node.snapshot import Snapshot
from envcheck.runner import judging
from envcheck.runner.outcomes import fields
from envcheck.runner.planning import CheckModule
from envcheck.runner.schema import OutcomeRow, plain
from envcheck.runner.state import Run

LOST_GPUS: Final = "lost-gpus"
_CHECK: Final = "gpu-lost"
_LOST_FIX: Final = "run the check gpu-lost, which says what to do; drain this node until its GPU answers again"


def unmeasured(run: Run, module: CheckModule) -> Outcome | None:
    """Return the outcome of a check that needs nothing measured, or cannot be; None for one that must be."""
    if module.kind == "env" and "device_count" not in run.environment:
        return None
    gpus = len(run.snapshot.gpus) if module.kind == "node" else int(run.environment["device_count"])
    why = _no_nvml(run.snapshot) if module.kind == "node" else _no_gpu(run.environment)
    # The GPUs were not counted without torch: insist_on_gpu says so, once.
    required = run.asked.plan.require_gpu and (module.kind == "node" or "error" not in run.environment)
    lacking = judging.without_gpu(module, gpus, why, require_gpu=required)
    if lacking is not None:
        return lacking
    if module.kind == "node":
        return judging.decide(module, run.view)
    ranks = run.nodes.world if run.nodes else gpus or run.asked.plan.nproc
    return None if "error" in run.environment else judging.alone(module, ranks)


def _no_gpu(environment: dict[str, Any]) -> str:
    for key in ("device_error", "device_facts_error"):
        if key in environment:
            return str(environment[key])
    if "error" in environment:
        return f"torch cannot be imported ({environment['error']})"
    return "CUDA shows none" if environment.get("cuda") else "this torch is built without CUDA"


def _no_nvml(snapshot: Snapshot) -> str:
    return snapshot.signal("driver.version").reason or "NVML shows none"


def insist_on_gpu(run: Run) -> None:
    """Without a GPU, --require-gpu is a failure even where no check of the plan would have used one.

    Where torch cannot be imported, whether there is a GPU is undetermined: the environment is broken, not the node.
    """
    if not run.asked.plan.require_gpu or run.mode == "gpu" or FAIL in {o.status for o in run.outcomes.values()}:
        return
    why, limit = _no_gpu(run.environment), Limit(1, "GPUs", "--require-gpu")
    if "error" in run.environment:
        fix = "give an interpreter or image that has torch; `envcheck build` makes both"
        outcome = undecided(why, fix=fix, code="torch.import")
    else:
        told: dict[str, Any] = {"value": 0, "unit": "GPUs", "limit": limit, "code": "gpu.required"}
        outcome = failed(f"torch sees no GPU: {why}", fix=judging.GPU_FIX, **told)
    run.known["require-gpu"] = OutcomeRow(id="require-gpu", kind="env", **fields(outcome))


def name_lost_gpus(run: Run) -> None:
    """Add an error where the driver lost a GPU and the check for that was left out."""
    row = lost_gpus_row(run.view, run.outcomes)
    if row is not None:
        run.known[row.id] = row


def lost_gpus_row(view: View, outcomes: Mapping[str, OutcomeRow]) -> OutcomeRow | None:
    """Return an error that names each lost GPU where the check gpu-lost did not fail for them; else None.

    Other checks skip a lost GPU, because gpu-lost fails for it.
    """
    earlier = outcomes.get(_CHECK)
    if earlier is not None and earlier.status in (FAIL, ERROR):
        return None
    lost = [(gpu, signal) for gpu in view.snapshot.gpus if (signal := gpu_readings.lost(gpu))]
    findings = [
        undecided(
            f"{gpu_readings.label(gpu)} does not answer ({signal.reason}), and this run left the check {_CHECK} out",
            fix=_LOST_FIX,
            code="lost-gpus.left-out",
            culprit=gpu_readings.culprit(view, gpu_readings.label(gpu)),
            gpus=[gpu.uuid],
        )
        for gpu, signal in lost
    ]
    if not findings:
        return None
    outcome = worst(findings, findings[0])
    return OutcomeRow(id=LOST_GPUS, kind="node", **fields(outcome), details=plain(dict(outcome.details)))
