"""A checkpoint that loads, and resumes another training than the one that was saved.

Trained on from a checkpoint, a fresh model must have the bits of the one that was not interrupted.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
from pathlib import Path
from typing import Any

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View, failed, passed, undecided, worst
from envcheck.checks.support import process_group, training
from envcheck.counting import counted

CHECK = Check(
    promise="training resumed from a checkpoint is the training that was saved, to the bit",
    level="standard",
    seconds=2.0,
    cpu_seconds=1.0,
    timeout=120.0,
    imports=("torch._dynamo",),  # by the first optimizer
)

STEPS = 4
DTYPES = ("float32", "float64", "bfloat16", "float16", "int64", "uint8")
LIMIT = Limit(0, "tensors that differ", "the same operations on the same bits, deterministic algorithms on", "at most")
_FIX = "save and load the whole state_dict of model, optimizer and schedule, and the random state; or reinstall torch"


def measure(rank: Rank) -> Measured:
    """Save half-way, go on; load, go on from there; fingerprint every tensor of both ends."""
    import torch

    training.make(torch)
    device = process_group.device_of(rank)
    path = Path(rank.scratch) / "checkpoint.pt"
    saved = training.Training(torch, device, seed=1)
    saved.run(0, STEPS)
    _save(torch, saved, path)
    saved.run(STEPS, STEPS)
    ended = saved.fingerprints()
    resumed = training.Training(torch, device, seed=2)
    lacking = _load(torch, resumed, path)
    resumed.run(STEPS, STEPS)
    return {
        **process_group.standing(rank, next(resumed.model.parameters())),
        "bytes": path.stat().st_size,
        "lacking": lacking,
        "losses": [saved.losses[STEPS:], resumed.losses],
        "saved": ended,
        "resumed": resumed.fingerprints(),
        "distributed": _distributed(torch, device, Path(rank.scratch) / "distributed"),
    }


def _distributed(torch: Any, device: Any, directory: Path) -> Measured:
    if importlib.util.find_spec("torch.distributed.checkpoint") is None:
        return {"absent": f"torch {torch.__version__} as installed has no module torch.distributed.checkpoint"}
    try:
        from torch.distributed import checkpoint
    except ImportError as error:  # of what torch does not ask for: pytorch/pytorch#163946
        return {"raised": process_group.quoted(error)}
    if not hasattr(checkpoint, "save") or "checkpoint_id" not in inspect.signature(checkpoint.save).parameters:
        return {"absent": f"torch {torch.__version__} has no torch.distributed.checkpoint.save(checkpoint_id=)"}
    try:
        return {"wrong": _not_the_same(torch, checkpoint, device, str(directory))}
    # PyTorch derives its CheckpointException from BaseException.
    except (Exception, getattr(checkpoint, "CheckpointException", Exception)) as error:  # noqa: BLE001 (a finding)
        return {"raised": process_group.quoted(error)}


def _not_the_same(torch: Any, checkpoint: Any, device: Any, directory: str) -> list[str]:
    plain = {name: list(range(first, first + 24)) for first, name in enumerate(DTYPES)}
    sent = {name: torch.tensor(numbers, dtype=getattr(torch, name), device=device) for name, numbers in plain.items()}
    received = {name: torch.zeros_like(tensor) for name, tensor in sent.items()}
    checkpoint.save({"nested": sent}, checkpoint_id=directory)
    checkpoint.load({"nested": received}, checkpoint_id=directory)
    return [name for name, numbers in plain.items() if received[name].tolist() != numbers]


def _save(torch: Any, training: training.Training, path: Path) -> None:
    state = {
        "model": training.model.state_dict(),
        "optimizer": training.optimizer.state_dict(),
        "random": torch.get_rng_state(),
        "random_cuda": torch.cuda.get_rng_state(training.device) if training.device.type == "cuda" else None,
    }
    with path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        # A full or failing disk says so here, or never.
        os.fsync(file.fileno())


def _load(torch: Any, training: training.Training, path: Path) -> list[str]:
    state = torch.load(path, map_location="cpu")
    loaded_keys = training.model.load_state_dict(state["model"], strict=False)
    training.optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["random"])
    if state["random_cuda"] is not None:
        torch.cuda.set_rng_state(state["random_cuda"], training.device)
    return [*loaded_keys.missing_keys, *loaded_keys.unexpected_keys]


@process_group.sound(backend=False)
def judge(view: View, ranks: Ranks) -> Outcome:  # noqa: ARG001 (a judge's signature)
    """Fail naming what the file lacks, or the first step and tensors that differ."""
    entry = ranks[0]
    losses, saved, resumed = entry.get("losses") or [[], []], entry.get("saved"), entry.get("resumed")
    written = process_group.finite(entry.get("bytes")) and entry["bytes"] > 0
    if [len(run) for run in losses] != [STEPS, STEPS] or not saved or not resumed or not written:
        return undecided("the training was not resumed", code="checkpoint.not-resumed")
    findings = []
    if not all(process_group.finite(loss) for run in losses for loss in run):
        fix = "run the kernels check on this device"
        findings.append(failed("the loss is not finite", fix=fix, losses=losses, code="checkpoint.loss"))
    if entry.get("lacking"):
        summary = f"the checkpoint lacks {', '.join(entry['lacking'])}"
        findings.append(failed(summary, fix=_FIX, lacking=entry["lacking"], code="checkpoint.lacks"))
    apart = _apart(losses, saved, resumed)
    findings += [*([apart] if apart else []), *_not_brought_back(entry)]
    same = f"{2 * STEPS} steps with a checkpoint between are the same to the bit: {len(saved)} tensors"
    fine = passed(f"{same}, {entry['bytes']} bytes on disk", value=0, limit=LIMIT, losses=losses[0])
    return worst(findings, otherwise=fine)


def _not_brought_back(entry: Measured) -> list[Outcome]:
    distributed = entry.get("distributed") or {}
    if distributed.get("raised"):
        summary = f"rank {entry.get('rank')}: torch.distributed.checkpoint raised {distributed['raised']}"
        fix = process_group.remedy(distributed["raised"], "reinstall torch")
        return [failed(summary, fix=fix, code="checkpoint.distributed-raised")]
    if distributed.get("wrong"):
        summary = f"torch.distributed.checkpoint brings back other numbers: {', '.join(distributed['wrong'])}"
        return [failed(summary, fix="reinstall torch", value=len(distributed["wrong"]), code="checkpoint.distributed")]
    if distributed.get("absent") or distributed.get("wrong") == []:
        return []
    name = "torch.distributed.checkpoint"
    return [undecided(f"{name} was not tried", code="checkpoint.missing", culprit=name)]


def _apart(losses: list[list[float]], saved: dict[str, str], resumed: dict[str, str]) -> process_group.Problem:
    apart = [name for name in sorted(saved.keys() | resumed.keys()) if saved.get(name) != resumed.get(name)]
    steps = [step for step, (one, other) in enumerate(zip(*losses)) if one != other]
    if not apart and not steps:
        return None
    when = f"from step {STEPS + steps[0]} on" if steps else "in what no loss shows"
    named = f": {', '.join(apart[:3])}{' …' if len(apart) > 3 else ''}" if apart else ""  # noqa: PLR2004 (a line's worth)
    return failed(
        f"the resumed training is another one {when}; {counted(len(apart), 'different tensor')}{named}",
        fix=_FIX,
        value=len(apart),
        limit=LIMIT,
        tensors=apart,
        losses=losses,
        code="checkpoint.differs",
    )
