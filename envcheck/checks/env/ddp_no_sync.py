"""Accumulated gradients that forget a micro-batch, or that are sent at every one of them.

Seen in the wild: `no_sync()` left around the last micro-batch too, so that ranks step with their own gradients and
drift; a wrapper whose no_sync does nothing, so that accumulation costs a collective each time. The reference is one
process on the whole batch; that nothing was sent meanwhile shows in gradients that still are the rank's own.
"""

from __future__ import annotations

from typing import Any

from envcheck.checks import Check, Measured, Outcome, Rank, Ranks, View, passed
from envcheck.checks.env import _group, _replicas

CHECK = Check(
    promise="gradients accumulated under no_sync stay local, and then equal one process's on the whole batch",
    level="standard",
    seconds=2.0,
    timeout=120.0,
    ranks=0,
    least_ranks=2,
    imports=("torch._dynamo",),  # by the first optimizer
)

STEPS = 2
MICRO_BATCHES = 4
PER_MICRO = 8
WIDTH = 48
LIMIT = _replicas.tolerance("a micro-batch left out is off by thousands of tolerances")


def measure(rank: Rank) -> Measured:
    """Accumulate a few micro-batches, then synchronise; say how far gradients are from both references."""
    import torch

    device = _group.device_of(rank)
    with _group.group(rank) as dist:
        torch.manual_seed(2000 + rank.rank)
        module = _replicas.model(torch, WIDTH).to(device)
        model = _replicas.wrap(rank, module)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
        local, synchronised = [], []
        for step in range(STEPS):
            optimizer.zero_grad()
            count = rank.world * MICRO_BATCHES * PER_MICRO
            inputs, targets = _replicas.batch(torch, 40 + step, count, WIDTH, device)
            errors = _accumulate(torch, rank, model, inputs, targets)
            local.append(errors[0])
            synchronised.append(errors[1])
            optimizer.step()
        where = _group.standing(rank, next(module.parameters()), dist.get_backend())
        ended = _replicas.digest(torch, module.parameters())
        return {**where, "local": local, "synchronised": synchronised, "ended": ended}


def _accumulate(torch: Any, rank: Rank, model: Any, inputs: Any, targets: Any) -> tuple[float, float]:
    """Return the errors of the gradients before and after they are synchronised, in tolerances."""
    module, mine = model.module, MICRO_BATCHES * PER_MICRO
    whole = _replicas.reference(torch, module, inputs, targets)
    inputs = inputs[rank.rank * mine : (rank.rank + 1) * mine]
    targets = targets[rank.rank * mine : (rank.rank + 1) * mine]
    last = mine - PER_MICRO
    kept = _replicas.reference(torch, module, inputs[:last], targets[:last])
    with model.no_sync():
        for start in range(0, last, PER_MICRO):
            _backward(torch, model, inputs, targets, start)
    share = last / mine
    before = _replicas.off((p.grad for p in module.parameters()), (grad * share for grad in kept))
    _backward(torch, model, inputs, targets, last)
    return before, _replicas.off((p.grad for p in module.parameters()), whole)


def _backward(torch: Any, model: Any, inputs: Any, targets: Any, start: int) -> None:
    micro = slice(start, start + PER_MICRO)
    (torch.nn.functional.mse_loss(model(inputs[micro]), targets[micro]) / MICRO_BATCHES).backward()


OFF = {
    "local": "gradients under no_sync are not the rank's own sum: they were sent, or a micro-batch is lost",
    "synchronised": "the accumulated gradients are not those of one process on the whole batch",
}


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail on a rank whose gradients were sent too early, are not the whole batch's, or whose replica drifted."""
    errors = _replicas.errors(view, ranks, tuple(OFF), STEPS)
    if isinstance(errors, Outcome):
        return errors
    off = _replicas.first_off(errors, LIMIT)
    if off is not None:
        fix = "run the ddp check: right there, reinstall torch, as its no_sync is broken; wrong there, run all-reduce"
        return _replicas.blamed(off, OFF[off.kind], fix, LIMIT)
    return _replicas.drifted(ranks, "ended", "after accumulating") or passed(
        f"{MICRO_BATCHES} micro-batches under no_sync equal one process's batch on {len(ranks)} ranks over "
        f"{ranks[0]['backend']}",
        value=max(error.value for error in errors),
        unit=LIMIT.unit,
        limit=LIMIT,
        digest=ranks[0]["ended"],
    )
