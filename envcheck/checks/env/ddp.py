"""Data-parallel training that runs, and trains a different model on every rank.

Seen in the wild: gradients that are not averaged (a wrapper bypassed, a broken reduction), replicas that drift apart
from the first step because the broadcast of weights was lost, all ranks on one GPU, gloo where NCCL was meant. The loss
still falls. Ranks start from different weights, so that only DDP's broadcast can make them equal; the reference is the
same model in one process on the whole batch.
"""

from __future__ import annotations

from typing import Any

from envcheck.checks import Check, Measured, Outcome, Rank, Ranks, View, failed, passed, worst
from envcheck.checks.env.support.collectives import process_group
from envcheck.checks.env.support.training import model_replicas, plain_math

CHECK = Check(
    promise="DDP's gradients equal one process's on the same global batch, and replicas stay equal to the bit",
    level="standard",
    seconds=2.0,
    cpu_seconds=0.2,
    timeout=120.0,
    ranks=0,
    least_ranks=2,
    imports=("torch._dynamo",),  # by the first optimizer
)

STEPS = 3
PER_RANK = 12
WIDTH = 43
RATE = 0.05
LIMIT = model_replicas.tolerance("a gradient that was not averaged is off by thousands of tolerances")


def measure(rank: Rank) -> Measured:
    """Train a few steps; say how far gradients are from the one-process reference, and digest the replica's weights."""
    import torch

    device, seed = process_group.device_of(rank), plain_math.seed_of(rank)
    with process_group.group(rank) as dist:
        module = model_replicas.model(torch, WIDTH).to(device)
        model_replicas.start(torch, module, f"{seed} {rank.rank}")
        own = model_replicas.digest(torch, module.parameters())
        model = model_replicas.wrap(rank, module)
        started = model_replicas.digest(torch, module.parameters())
        errors, losses, steps = [], [], []
        for step in range(STEPS):
            batch = model_replicas.batch(torch, f"{seed} {step}", rank.world * PER_RANK, WIDTH, device)
            error, loss, moved = _step(torch, rank, model, module, batch)
            errors.append(error)
            losses.append(loss)
            steps.append(moved)
        where = process_group.standing(rank, next(module.parameters()), dist.get_backend())
        ended = model_replicas.digest(torch, module.parameters())
        measured = {"own": own, "started": started, "ended": ended, "errors": errors, "steps": steps, "losses": losses}
        return {**where, "seed": seed, **measured}


def _step(torch: Any, rank: Rank, model: Any, module: Any, batch: model_replicas.Batch) -> tuple[float, float, float]:
    """Take one step of plain gradient descent; return how far the gradients are off, the loss, and how far the step."""
    reference = model_replicas.reference(module, batch)
    before = [plain_math.flat(part) for part in model_replicas.weights(module)]
    inputs, targets = batch.share(rank.rank * PER_RANK, PER_RANK).tensors
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    error = model_replicas.off([p.grad for p in module.parameters()], reference)
    optimizer.step()
    moved = [[x - RATE * g for x, g in zip(part, grad)] for part, grad in zip(before, reference)]
    return error, float(loss.detach()), model_replicas.off(module.parameters(), moved)


OFF = {
    "errors": "the gradients are not those of one process on the whole batch",
    "steps": "the weights after the step are not one process's",
}
CODES = {"errors": "ddp.gradients", "steps": "ddp.weights"}


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail on a rank whose gradients or steps are off, or whose replica is not the others', naming it."""
    errors = model_replicas.errors(view, ranks, tuple(OFF), STEPS)
    if isinstance(errors, Outcome):
        return errors
    fix = "run the all-reduce check: wrong there too, the link or NCCL is broken; right there, reinstall torch"
    off = model_replicas.first_off(errors, LIMIT)
    findings = [model_replicas.blamed(off, OFF[off.kind], fix, LIMIT, CODES[off.kind])] if off is not None else []
    findings += [drift for moment, when in MOMENTS.items() if (drift := model_replicas.drifted(ranks, moment, when))]
    findings += _unsent(ranks)
    summary = f"gradients equal one process's and replicas are equal on {len(ranks)} ranks over {ranks[0]['backend']}"
    return worst(
        findings,
        passed(
            summary,
            value=None if findings else max(error.value for error in errors),
            unit=LIMIT.unit,
            limit=LIMIT,
            digest=ranks[0]["ended"],
            seed=ranks[0].get("seed"),
        ),
    )


MOMENTS = {"started": "when training started", "ended": "when training ended"}


def _unsent(ranks: Ranks) -> list[Outcome]:
    """Return the failure that DDP began with other weights than rank 0's own."""
    if ranks[0].get("own") == ranks[0].get("started"):
        return []
    summary = "training started with other weights than rank 0 was given"
    return [failed(summary, fix="run the collectives check: broadcast is wrong", code="ddp.start", culprit="rank 0")]
