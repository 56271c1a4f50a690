"""Data-parallel training that runs, and trains a different model on every rank.

Seen in the wild: gradients that are not averaged (a wrapper bypassed, a broken reduction), replicas that drift apart
from the first step because the broadcast of weights was lost, all ranks on one GPU, gloo where NCCL was meant. The loss
still falls. Ranks start from different weights, so that only DDP's broadcast can make them equal; the reference is the
same model in one process on the whole batch.
"""

from __future__ import annotations

from typing import Any

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View, failed, passed, skipped, undecided
from envcheck.checks.env import _group, _replicas

CHECK = Check(
    promise="DDP's gradients equal one process's on the same global batch, and replicas stay equal to the bit",
    level="standard",
    seconds=2.0,
    timeout=120.0,
    ranks=0,
    imports=("torch._dynamo",),  # by the first optimizer
)

STEPS = 3
PER_RANK = 16
WIDTH = 64
RTOL, ATOL = 1e-5, 1e-6
LIMIT = Limit(
    1.0,
    "of the tolerance",
    f"|gradient - reference| <= {ATOL:g} + {RTOL:g} * |reference| in fp32: the order of adding differs, nothing else "
    "may (ours; a gradient that was not averaged is off by thousands of tolerances)",
    "at most",
)


def measure(rank: Rank) -> Measured:
    """Train a few steps; say how far gradients are from the one-process reference, and digest the replica's weights."""
    import torch

    device = _group.device_of(rank)
    with _group.group(rank) as dist:
        torch.manual_seed(1000 + rank.rank)
        module = _model(torch).to(device)
        model = _replicas.wrap(rank, module)
        started = _replicas.digest(torch, module.parameters())
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
        errors, losses = [], []
        for step in range(STEPS):
            inputs, targets = _batch(torch, step, rank.world, device)
            reference = _replicas.reference(torch, module, inputs, targets)
            mine = slice(rank.rank * PER_RANK, (rank.rank + 1) * PER_RANK)
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs[mine]), targets[mine])
            loss.backward()
            errors.append(max(_off(parameter.grad, grad) for parameter, grad in zip(module.parameters(), reference)))
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


def _model(torch: Any) -> Any:
    layers = torch.nn
    return layers.Sequential(layers.Linear(WIDTH, WIDTH), layers.Tanh(), layers.Linear(WIDTH, 8))


def _batch(torch: Any, step: int, world: int, device: Any) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(world * PER_RANK, WIDTH, generator=generator)
    return inputs.to(device), torch.randn(world * PER_RANK, 8, generator=generator).to(device)


def _off(gradient: Any, reference: Any) -> float:
    return float(((gradient - reference).abs() / (ATOL + RTOL * reference.abs())).max())


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail on a rank whose gradients are off, or whose replica is not the others', naming it."""
    found = _group.problem(view, ranks)
    if found is not None:
        return found
    if len(ranks) == 1:
        return skipped("one rank averages with nobody")
    worst = 0.0
    for entry in ranks:
        errors = entry.get("errors") or []
        if len(errors) != STEPS or not entry.get("ended"):
            return undecided(f"rank {entry['rank']} took {len(errors)} of {STEPS} steps", fix="see the check's log")
        for step, error in enumerate(errors):
            if not _group.finite(error) or not 0 <= error <= LIMIT.value:
                return _off_reference(entry, step, error)
            worst = max(worst, error)
    drifted = _replicas.drifted(ranks, "started", "when training started")
    return (
        drifted
        or _replicas.drifted(ranks, "ended", "when training ended")
        or passed(
            f"gradients equal one process's and replicas are equal on {len(ranks)} ranks over {ranks[0]['backend']}",
            value=worst,
            unit=LIMIT.unit,
            limit=LIMIT,
            digest=ranks[0]["ended"],
        )
    )


def _off_reference(entry: Measured, step: int, error: Any) -> Outcome:
    return failed(
        f"rank {entry['rank']}, step {step}: the gradients are not those of one process on the whole batch",
        fix="run the all-reduce check: wrong there too, the link or NCCL is broken; right there, reinstall torch",
        value=error if _group.finite(error) else None,
        unit=LIMIT.unit,
        limit=LIMIT,
        rank=entry["rank"],
        step=step,
    )
