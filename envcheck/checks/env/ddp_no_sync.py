"""Accumulated gradients that forget a micro-batch, or that are sent at every one of them.

Seen in the wild: `no_sync()` left around the last micro-batch too, so that ranks step with their own gradients and
drift; a wrapper whose no_sync does nothing, so that accumulation costs a collective each time. The reference is one
process on the whole batch; that nothing was sent meanwhile shows in gradients that still are the rank's own.
"""

from __future__ import annotations

from typing import Any

from envcheck.checks import Check, Measured, Outcome, Rank, Ranks, View, passed, worst
from envcheck.checks.env.support.collectives import process_group
from envcheck.checks.env.support.training import model_replicas, plain_math

CHECK = Check(
    promise="gradients accumulated under no_sync stay local, and then equal one process's on the whole batch",
    level="standard",
    seconds=2.0,
    cpu_seconds=0.2,
    timeout=120.0,
    ranks=0,
    least_ranks=2,
    imports=("torch._dynamo",),  # by the first optimizer
)

STEPS = 2
MICRO_BATCHES = 4
PER_MICRO = 5
WIDTH = 29
LIMIT = model_replicas.tolerance("a micro-batch left out is off by thousands of tolerances")


def measure(rank: Rank) -> Measured:
    """Accumulate a few micro-batches, then synchronise; say how far gradients are from both references."""
    import torch

    device, seed = process_group.device_of(rank), plain_math.seed_of(rank)
    with process_group.group(rank) as dist:
        module = model_replicas.model(torch, WIDTH).to(device)
        model_replicas.start(torch, module, f"{seed} {rank.rank}")
        model = model_replicas.wrap(rank, module)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
        local, synchronised = [], []
        for step in range(STEPS):
            optimizer.zero_grad()
            count = rank.world * MICRO_BATCHES * PER_MICRO
            batch = model_replicas.batch(torch, f"{seed} {step}", count, WIDTH, device)
            errors = _accumulate(torch, rank, model, batch)
            local.append(errors[0])
            synchronised.append(errors[1])
            optimizer.step()
        where = process_group.standing(rank, next(module.parameters()), dist.get_backend())
        ended = model_replicas.digest(torch, module.parameters())
        return {**where, "seed": seed, "local": local, "synchronised": synchronised, "ended": ended}


def _accumulate(torch: Any, rank: Rank, model: Any, batch: model_replicas.Batch) -> tuple[float, float]:
    """Return the errors of the gradients before and after they are synchronised, in tolerances."""
    module, per_rank = model.module, MICRO_BATCHES * PER_MICRO
    unsplit = model_replicas.reference(module, batch)
    own = batch.share(rank.rank * per_rank, per_rank)
    last = per_rank - PER_MICRO
    with model.no_sync():
        for first in range(0, last, PER_MICRO):
            _backward(torch, model, own.share(first, PER_MICRO))
    expected = model_replicas.reference(module, own.share(0, last))
    share = last / per_rank
    before = model_replicas.off([p.grad for p in module.parameters()], [[x * share for x in grad] for grad in expected])
    _backward(torch, model, own.share(last, PER_MICRO))
    return before, model_replicas.off([p.grad for p in module.parameters()], unsplit)


def _backward(torch: Any, model: Any, batch: model_replicas.Batch) -> None:
    inputs, targets = batch.tensors
    (torch.nn.functional.mse_loss(model(inputs), targets) / MICRO_BATCHES).backward()


OFF = {
    "local": "gradients under no_sync are not the rank's own sum: they were sent, or a micro-batch is lost",
    "synchronised": "the accumulated gradients are not those of one process on the whole batch",
}
CODES = {"local": "ddp.no-sync-gradients", "synchronised": "ddp.accumulated-gradients"}


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail on a rank whose gradients were sent too early, are not the whole batch's, or whose replica drifted."""
    errors = model_replicas.errors(view, ranks, tuple(OFF), STEPS)
    if isinstance(errors, Outcome):
        return errors
    off = model_replicas.first_off(errors, LIMIT)
    fix = "run the ddp check: right there, reinstall torch, as its no_sync is broken; wrong there, run all-reduce"
    findings = [model_replicas.blamed(off, OFF[off.kind], fix, LIMIT, CODES[off.kind])] if off is not None else []
    drift = model_replicas.drifted(ranks, "ended", "after accumulating")
    summary = f"{MICRO_BATCHES} micro-batches under no_sync equal one process's batch"
    return worst(
        [*findings, *([drift] if drift else [])],
        passed(
            f"{summary} on {len(ranks)} ranks over {ranks[0]['backend']}",
            value=None if off else max(error.value for error in errors),
            unit=LIMIT.unit,
            limit=LIMIT,
            digest=ranks[0]["ended"],
            seed=ranks[0].get("seed"),
        ),
    )
