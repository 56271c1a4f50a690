"""Data-parallel training that runs, and trains a different model on every rank.

Seen in the wild: gradients that are not averaged (a wrapper bypassed, a broken reduction), replicas that drift apart
from the first step because the broadcast of weights was lost, all ranks on one GPU, gloo where NCCL was meant. The loss
still falls. Ranks start from different weights, so that only DDP's broadcast can make them equal; the reference is the
same model in one process on the whole batch.
"""

from __future__ import annotations

from envcheck.checks import Check, Measured, Outcome, Rank, Ranks, View, passed
from envcheck.checks.env import _group, _replicas

CHECK = Check(
    promise="DDP's gradients equal one process's on the same global batch, and replicas stay equal to the bit",
    level="standard",
    seconds=2.0,
    timeout=120.0,
    ranks=0,
    least_ranks=2,
    imports=("torch._dynamo",),  # by the first optimizer
)

STEPS = 3
PER_RANK = 16
WIDTH = 64
LIMIT = _replicas.tolerance("a gradient that was not averaged is off by thousands of tolerances")


def measure(rank: Rank) -> Measured:
    """Train a few steps; say how far gradients are from the one-process reference, and digest the replica's weights."""
    import torch

    device = _group.device_of(rank)
    with _group.group(rank) as dist:
        torch.manual_seed(1000 + rank.rank)
        module = _replicas.model(torch, WIDTH).to(device)
        model = _replicas.wrap(rank, module)
        started = _replicas.digest(torch, module.parameters())
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
        errors, losses = [], []
        for step in range(STEPS):
            inputs, targets = _replicas.batch(torch, step, rank.world * PER_RANK, WIDTH, device)
            reference = _replicas.reference(torch, module, inputs, targets)
            mine = slice(rank.rank * PER_RANK, (rank.rank + 1) * PER_RANK)
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs[mine]), targets[mine])
            loss.backward()
            errors.append(_replicas.off((p.grad for p in module.parameters()), reference))
            losses.append(float(loss.detach()))
            optimizer.step()
        where = _group.standing(rank, next(module.parameters()), dist.get_backend())
        return {
            **where,
            "started": started,
            "ended": _replicas.digest(torch, module.parameters()),
            "errors": errors,
            "losses": losses,
        }


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail on a rank whose gradients are off, or whose replica is not the others', naming it."""
    errors = _replicas.errors(view, ranks, ("errors",), STEPS)
    if isinstance(errors, Outcome):
        return errors
    off = _replicas.first_off(errors, LIMIT)
    if off is not None:
        what = "the gradients are not those of one process on the whole batch"
        fix = "run the all-reduce check: wrong there too, the link or NCCL is broken; right there, reinstall torch"
        return _replicas.blamed(off, what, fix, LIMIT)
    return (
        _replicas.drifted(ranks, "started", "when training started")
        or _replicas.drifted(ranks, "ended", "when training ended")
        or passed(
            f"gradients equal one process's and replicas are equal on {len(ranks)} ranks over {ranks[0]['backend']}",
            value=max(error.value for error in errors),
            unit=LIMIT.unit,
            limit=LIMIT,
            digest=ranks[0]["ended"],
        )
    )
