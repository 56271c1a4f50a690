"""A checkpoint that loads, and resumes another training than the one that was saved.

Seen in the wild: a buffer (BatchNorm's statistics) that is not in the file, an optimizer that starts afresh, a schedule
or a random generator that begins again at step 0, a file system that says "written" and was full. The loss jumps a
little and nobody asks. Saved after k steps, run on to 2k; loaded into a fresh model, run to 2k: the bits are the same.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View, failed, passed, undecided
from envcheck.checks.env import _deterministic, _group

CHECK = Check(
    promise="training resumed from a checkpoint is the training that was saved, to the bit",
    level="standard",
    seconds=2.0,
    timeout=120.0,
    imports=("torch._dynamo",),  # by the first optimizer
)

STEPS = 4
LIMIT = Limit(0, "tensors that differ", "the same operations on the same bits, deterministic algorithms on", "at most")
_FIX = "save and load the whole state_dict of model, optimizer and schedule, and the random state; or reinstall torch"


def measure(rank: Rank) -> Measured:
    """Save half-way, go on; load, go on from there; fingerprint every tensor of both ends."""
    import torch

    _deterministic.make(torch)
    device = _group.device_of(rank)
    path = Path(rank.scratch) / "checkpoint.pt"
    saved = _deterministic.Training(torch, device, seed=1)
    saved.run(0, STEPS)
    _save(torch, saved, path)
    saved.run(STEPS, STEPS)
    resumed = _deterministic.Training(torch, device, seed=2)
    lacking = _load(torch, resumed, path)
    resumed.run(STEPS, STEPS)
    where = _group.standing(rank, next(resumed.model.parameters()))
    return {
        **where,
        "bytes": path.stat().st_size,
        "lacking": lacking,
        "losses": [saved.losses[STEPS:], resumed.losses],
        "saved": saved.fingerprints(),
        "resumed": resumed.fingerprints(),
    }


def _save(torch: Any, training: _deterministic.Training, path: Path) -> None:
    cuda = torch.cuda.get_rng_state(training.device) if training.device.type == "cuda" else None
    state = {
        "model": training.model.state_dict(),
        "optimizer": training.optimizer.state_dict(),
        "schedule": training.schedule.state_dict(),
        "random": torch.get_rng_state(),
        "random_cuda": cuda,
    }
    with path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        # A full or failing disk says so here, or never.
        os.fsync(file.fileno())


def _load(torch: Any, training: _deterministic.Training, path: Path) -> list[str]:
    """Load everything; return what of the model the file does not hold."""
    state = torch.load(path, map_location="cpu")
    found = training.model.load_state_dict(state["model"], strict=False)
    training.optimizer.load_state_dict(state["optimizer"])
    training.schedule.load_state_dict(state["schedule"])
    torch.set_rng_state(state["random"])
    if state["random_cuda"] is not None:
        torch.cuda.set_rng_state(state["random_cuda"], training.device)
    return [*found.missing_keys, *found.unexpected_keys]


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail naming what the file lacks, or the first step and tensors that differ."""
    found = _group.problem(view, ranks, backend=False)
    if found is not None:
        return found
    entry = ranks[0]
    losses, saved, resumed = entry.get("losses") or [[], []], entry.get("saved"), entry.get("resumed")
    written = _group.finite(entry.get("bytes")) and entry["bytes"] > 0
    if [len(run) for run in losses] != [STEPS, STEPS] or not saved or not resumed or not written:
        return undecided("the training was not resumed", fix="see the check's log")
    if not all(_group.finite(loss) for run in losses for loss in run):
        return failed("the loss is not finite", fix="run the matmul check on this device", losses=losses)
    if entry.get("lacking"):
        return failed(f"the checkpoint lacks {', '.join(entry['lacking'])}", fix=_FIX, lacking=entry["lacking"])
    return _apart(losses, saved, resumed) or passed(
        f"{2 * STEPS} steps with a checkpoint between are the same to the bit: {len(saved)} tensors, "
        f"{entry['bytes']} bytes on disk",
        value=0,
        unit=LIMIT.unit,
        limit=LIMIT,
        losses=losses[0],
    )


def _apart(losses: list[list[float]], saved: dict[str, str], resumed: dict[str, str]) -> _group.Problem:
    names = sorted(saved.keys() | resumed.keys())
    apart = [name for name in names if saved.get(name) != resumed.get(name)]
    steps = [step for step, (one, other) in enumerate(zip(*losses)) if one != other]
    if not apart and not steps:
        return None
    when = f"from step {STEPS + steps[0]} on" if steps else "in what no loss shows"
    named = f": {', '.join(apart[:3])}{' …' if len(apart) > 3 else ''}" if apart else ""  # noqa: PLR2004 (a line's worth)
    return failed(
        f"the resumed training is another one {when}; {len(apart)} tensors differ{named}",
        fix=_FIX,
        value=len(apart),
        unit=LIMIT.unit,
        limit=LIMIT,
        tensors=apart,
        losses=losses,
    )
