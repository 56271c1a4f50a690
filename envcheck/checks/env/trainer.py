"""transformers' Trainer that trains something else than its arguments say, or cannot be resumed.

Seen in the wild: an accelerate that is missing or too old for the transformers beside it, tensorboard that breaks with
a newer protobuf, checkpoints that a new torch.load refuses, an optimizer that starts afresh on resume, a NaN that the
Trainer's log hides behind earlier losses, `bf16=True` that changes nothing. A tiny model is made, saved and loaded
offline; it trains for 8 steps in bf16; a second run, from spoilt weights, goes on from the checkpoint of step 4 and has
to end with the same bits; TensorBoard's own reader has to find every loss.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from pathlib import Path
from typing import Any

from envcheck.checks import (
    Check,
    Limit,
    Measured,
    Outcome,
    Rank,
    Ranks,
    View,
    failed,
    passed,
    skipped,
    undecided,
    worst,
)
from envcheck.checks.env.support.collectives import process_group
from envcheck.checks.env.support.training import deterministic_training, dtype_precision, promise_cases, trainer_runs
from envcheck.counting import counted

CHECK = Check(
    promise="transformers' Trainer trains in bf16, logs every loss, and resumes a checkpoint to the bit",
    level="standard",
    seconds=12.0,
    cpu_seconds=8.0,  # half of it imports transformers
    timeout=240.0,
    imports=("torch._dynamo",),  # by the first optimizer
)

STEPS, SAVED_AT = trainer_runs.STEPS, trainer_runs.SAVED_AT
NEEDED = ("accelerate",)  # an environment for inference does without
LIMIT = Limit(
    0.9, "of the first loss", "ours: the last of 8 steps on arithmetic progressions, seen at 0.75 in bf16", "at most"
)
_ROUNDING = 1e-4  # transformers before 5 logs losses with four decimals
_FIX = "install transformers, accelerate and tensorboard of one time; see the check's log"


def measure(rank: Rank) -> Measured:
    """Train, resume, and read the log; say at which stage whatever broke did."""
    import torch

    deterministic_training.make(torch)
    device = process_group.device_of(rank)
    where = process_group.standing(rank, torch.zeros(1, device=device))
    if importlib.util.find_spec("transformers") is None:
        return {**where, "absent": "transformers"}
    result: Measured = {**where, "missing": [name for name in NEEDED if importlib.util.find_spec(name) is None]}
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else ()
    result |= {"versions": _versions(), "capability": list(capability), "stage": "the import"}
    if result["missing"]:
        return result
    try:
        _train(torch, rank, result)
    except Exception as error:  # noqa: BLE001 (whatever a library raises is the finding)
        result["raised"] = promise_cases.quoted(_cause(error))
    return result


def _cause(error: BaseException) -> BaseException:
    """Return the first of a chain of exceptions: transformers' own only says which of its modules it could not load."""
    return error if error.__cause__ is None else _cause(error.__cause__)


def _versions() -> dict[str, str]:
    """Return the version of each package that takes part and is installed."""
    versions = {name: _version(name) for name in ("transformers", "tensorboard", *NEEDED)}
    return {name: version for name, version in versions.items() if version}


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _train(torch: Any, rank: Rank, result: Measured) -> None:
    """Go through all stages, and leave in `result` what each gives."""
    directory = Path(rank.scratch)
    trainer_runs.isolate(directory)
    importlib.import_module("transformers").Trainer  # noqa: B018 (imported when asked for)
    result["stage"] = "saving and loading the model"
    saved = trainer_runs.save(torch, directory / "model")
    model, spoilt = (trainer_runs.load(directory / "model") for _ in range(2))
    result["apart"] = _apart(saved, trainer_runs.digests(torch, model))
    tensorboard = importlib.util.find_spec("tensorboard") is not None
    gpu = rank.device != "cpu"
    options = {"bf16": computed_in(gpu=gpu, capability=result["capability"]) == "bfloat16", "cpu": not gpu}
    result["stage"] = "training"
    uninterrupted = trainer_runs.TrainerRun(torch, model, directory / "whole", tensorboard=tensorboard, **options)
    uninterrupted.train()
    result |= {"whole": uninterrupted.seen(), **process_group.standing(rank, next(model.parameters()))}
    result["stage"] = f"resuming from step {SAVED_AT}"
    trainer_runs.spoil(torch, spoilt)
    resumed = trainer_runs.TrainerRun(torch, spoilt, directory / "resumed", tensorboard=tensorboard, **options)
    resumed.train(directory / "whole" / f"checkpoint-{SAVED_AT}")
    result |= {"resumed": resumed.seen(), "stage": "reading the TensorBoard log"}
    result["events"] = trainer_runs.events(uninterrupted.logs) if tensorboard else None


def computed_in(*, gpu: bool, capability: list[int]) -> str:
    """Return the dtype that a device is asked to train in: float32 where it has no bfloat16 of its own."""
    emulated = gpu and tuple(capability) < dtype_precision.BFLOAT16_SINCE
    return "float32" if emulated else "bfloat16"


def _apart(one: Measured, other: Measured) -> list[str]:
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def judge(view: View, ranks: Ranks) -> Outcome:
    """Skip without transformers; fail naming the stage that broke, or what was trained, logged or resumed wrongly."""
    problem = process_group.problem(view, ranks, backend=False)
    if problem is not None:
        return problem
    entry = ranks[0]
    if entry.get("absent"):
        return skipped("transformers is not installed", code="trainer.no-transformers")
    broken = _broken(entry)
    if broken is not None:
        return broken
    uninterrupted, resumed = entry.get("whole") or {}, entry.get("resumed") or {}
    if not _complete(entry, uninterrupted) or not isinstance(resumed.get("losses"), list) or not resumed.get("state"):
        return undecided("no training was compared", fix="see the check's log", code="trainer.unmeasured")
    findings = [
        *_model(entry),
        *_losses(uninterrupted),
        *_dtypes(view, entry),
        *_resumed(uninterrupted, resumed),
        *_events(entry),
    ]
    return worst(findings, otherwise=findings[0]) if findings else _trained(entry)


def _complete(entry: Measured, uninterrupted: Measured) -> bool:
    """Return whether the first run went from the first step to the last, and kept moments."""
    moments = [name for name in uninterrupted.get("state") or {} if name.endswith(("exp_avg", "exp_avg_sq"))]
    steps = uninterrupted.get("steps") == list(range(1, STEPS + 1)) and len(uninterrupted.get("losses") or []) == STEPS
    return steps and bool(moments) and isinstance(entry.get("apart"), list)


def _broken(entry: Measured) -> process_group.Problem:
    """Return the failure of what is missing, or of the stage that raised; None where all stages were gone through."""
    version = (entry.get("versions") or {}).get("transformers", "")
    if entry.get("missing"):
        names = " and ".join(entry["missing"])
        return skipped(
            f"transformers {version} is installed without {names}: nothing trains here", code="trainer.missing"
        )
    if entry.get("raised"):
        stage = entry.get("stage")
        return failed(
            f"transformers {version}: {stage} raised {entry['raised']}",
            fix=_FIX,
            versions=entry.get("versions"),
            code="trainer.raised",
            culprit=str(stage),
        )
    return None


def _model(entry: Measured) -> list[Outcome]:
    apart = entry["apart"]
    if not apart:
        return []
    summary = f"from_pretrained brings back other weights than save_pretrained wrote: {_some(apart)}"
    return [failed(summary, fix="reinstall transformers and safetensors", tensors=apart, code="trainer.loading")]


def _losses(uninterrupted: Measured) -> list[Outcome]:
    """Return a finding where the loss is not finite, or does not fall."""
    losses = uninterrupted["losses"]
    wrong = [step for step, loss in enumerate(losses, 1) if not process_group.finite(loss)]
    if wrong:
        fix = "run the checks matmul and amp on this device"
        return [failed(f"the loss is not finite at step {wrong[0]}", fix=fix, losses=losses, code="trainer.loss")]
    share = losses[-1] / losses[0] if losses[0] > 0 else float("inf")
    if share <= LIMIT.value:
        return []
    summary = f"the loss does not fall: {losses[0]:.3g} at step 1, {losses[-1]:.3g} at step {STEPS}"
    value = share if process_group.finite(share) else None
    fix = "run the checks optimizers and amp; reinstall transformers and accelerate"
    return [
        failed(
            summary, fix=fix, value=value, unit=LIMIT.unit, limit=LIMIT, losses=losses, code="trainer.learns-nothing"
        )
    ]


def _dtypes(view: View, entry: Measured) -> list[Outcome]:
    """Return a finding for each run that computed in another dtype than asked for, or whose weights are not float32."""
    due = computed_in(gpu=view.mode == "gpu", capability=entry.get("capability") or [])
    fix = "reinstall accelerate; look for ACCELERATE_MIXED_PRECISION and code that changes torch.autocast"
    findings = []
    for name in ("whole", "resumed"):
        computed, weights = entry[name].get("computed"), entry[name].get("weights")
        if computed != [due] or weights != ["float32"]:
            summary = (
                f"the {name} run was to compute in {due} with weights in float32, "
                f"and computed in {_some(computed)} with weights in {_some(weights)}"
            )
            findings.append(failed(summary, fix=fix, code="trainer.dtype", culprit=f"{name} run"))
    return findings


def _resumed(uninterrupted: Measured, resumed: Measured) -> list[Outcome]:
    """Return a finding where the resumed run took other steps, saw other losses, or ended with other bits."""
    due = uninterrupted["steps"][SAVED_AT:]
    fix = "update transformers, accelerate and torch together; look at what the checkpoint's directory holds"
    if resumed.get("steps") != due:
        summary = f"resumed from step {SAVED_AT}, the Trainer took the steps {resumed.get('steps')}, not {due}"
        return [failed(summary, fix=fix, code="trainer.steps")]
    apart = _apart(uninterrupted["state"], resumed["state"])
    pairs = zip(due, uninterrupted["losses"][SAVED_AT:], resumed["losses"])
    # As texts: a NaN that comes again is no difference, and has a finding of its own.
    steps = [step for step, one, other in pairs if str(one) != str(other)]
    if not apart and not steps:
        return []
    when = f"from step {steps[0]} on" if steps else "in what no loss shows"
    named = f": {_some(apart)}" if apart else ""
    return [
        failed(
            f"the resumed run is another one {when}; {counted(len(apart), 'different tensor')}{named}",
            fix=fix,
            value=len(apart),
            unit="tensors that differ",
            tensors=apart,
            losses=[uninterrupted["losses"], resumed["losses"]],
            code="trainer.differs",
        )
    ]


def _events(entry: Measured) -> list[Outcome]:
    """Return a finding where the TensorBoard log lacks a step, or holds another loss; none without tensorboard."""
    if "tensorboard" not in (entry.get("versions") or {}) and entry.get("events") is None:
        return []
    events, uninterrupted = entry.get("events") or [], entry["whole"]
    fix = "reinstall tensorboard with a protobuf that it accepts; look for space on the disk"
    if [int(step) for step, _ in events] != uninterrupted["steps"]:
        summary = f"the TensorBoard log has the loss of {len(events)} of {counted(STEPS, 'step')}"
        return [failed(summary, fix=fix, value=len(events), unit="steps", code="trainer.events")]
    for (step, actual), loss in zip(events, uninterrupted["losses"]):
        if process_group.finite(loss) and not (process_group.finite(actual) and abs(actual - loss) <= _ROUNDING):
            summary = f"the TensorBoard log says that the loss at step {step} is {actual}, it was {loss}"
            return [failed(summary, fix=fix, code="trainer.events")]
    return []


def _some(names: Any) -> str:
    """Return the first names of a list, for people."""
    shown = [str(name) for name in names or []]
    return ", ".join(shown[:3]) + (" …" if len(shown) > 3 else "") if shown else "nothing"  # noqa: PLR2004 (a line's worth)


def _trained(entry: Measured) -> Outcome:
    uninterrupted, versions = entry["whole"], entry.get("versions") or {}
    losses, [dtype] = uninterrupted["losses"], uninterrupted["computed"]
    logged = "TensorBoard's log holds them" if entry.get("events") else "without a log: tensorboard is not installed"
    return passed(
        f"transformers {versions.get('transformers')}: {STEPS} steps in {dtype}, the loss falls from {losses[0]:.3g} "
        f"to {losses[-1]:.3g}, {logged}; resumed at step {SAVED_AT}, {counted(len(uninterrupted['state']), 'tensor')} "
        "are the same to the bit",
        value=losses[-1] / losses[0],
        unit=LIMIT.unit,
        limit=LIMIT,
        losses=losses,
        versions=versions,
    )
