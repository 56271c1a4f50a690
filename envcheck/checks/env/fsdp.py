"""Sharded training that gathers another model than the one that was sharded.

Each layer is sharded over the ranks (its sizes do not divide by them), trained a few steps, and gathered: the weights
have to be those of one process on the whole batch.
"""

from __future__ import annotations

import math
from typing import Any

from envcheck import checks
from envcheck.checks import Measured, Outcome, Rank, Ranks, View, failed, passed, skipped, undecided, worst
from envcheck.checks.support import process_group, training

CHECK = checks.Check(
    promise="training sharded by FSDP2 ends with the weights that one process ends with on the same global batch",
    level="full",
    seconds=3.0,
    cpu_seconds=0.5,
    timeout=180.0,
    ranks=0,
    least_ranks=2,
    imports=("torch._dynamo",),  # by the first optimizer
)

SINCE = (2, 4)
# Seen on a CPU: 2.4 and 2.5 call torch.cuda by name, 2.6 asks a CPU's stream for an event. 2.8 runs, but its gloo adds
# up the gradients that FSDP2 asks it to average (pytorch/pytorch#162338).
CPU_SINCE = (2, 9)
LIMIT = checks.Limit(
    1e-5,
    "relative error",
    "fp32 after a few steps of plain gradient descent: only the order of adding differs, seen at 1e-7 on a CPU (ours)",
    "at most",
)
_FIX = "run collectives and ddp: right there, reinstall or update torch, as its FSDP is broken"
STEPS, PER_RANK, WIDTH, RATE = 4, 8, 51, 0.05


def measure(rank: Rank) -> Measured:
    """Train sharded; say how far shards and gathered weights are from what plain Python computes."""
    import torch

    device, seed = process_group.device_of(rank), training.seed_of(rank)
    with process_group.group(rank) as dist:
        where = {**process_group.standing(rank, torch.zeros(1, device=device), dist.get_backend()), "seed": seed}
        fully_shard, why = _fully_shard(torch, device.type)
        if fully_shard is None or rank.world == 1:
            return {**where, "unsupported": why}
        from torch.distributed.device_mesh import init_device_mesh

        model = training.model(torch, WIDTH, seed, device)
        right, losses = training.weights(model), list[float]()
        mesh = init_device_mesh(device.type, (rank.world,))
        for layer in (model[0], model[2], model):
            fully_shard(layer, mesh=mesh)
        for step in range(STEPS):
            batch = training.batch(torch, f"{seed} {step}", rank.world * PER_RANK, WIDTH, device)
            losses.append(_step(torch, rank, model, batch))
            right = training.stepped(right, training.two_layers(right, *batch.rows)[1], RATE)
        return {**where, "losses": losses, **_compared(torch, rank, model, right)}


def _step(torch: Any, rank: Rank, sharded: Any, batch: training.Batch) -> float:
    inputs, targets = batch.share(rank.rank * PER_RANK, PER_RANK).tensors
    optimizer = torch.optim.SGD(sharded.parameters(), lr=RATE)
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(sharded(inputs).float(), targets)
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def _compared(torch: Any, rank: Rank, sharded: Any, right: training.Vectors) -> Measured:
    unsharded = [p.full_tensor().detach() for p in sharded.parameters()]
    # The last ranks may hold fewer rows, or none.
    each = [math.ceil(p.shape[0] / rank.world) * (p.numel() // p.shape[0]) for p in unsharded]
    mine = [part[rank.rank * count : (rank.rank + 1) * count] for part, count in zip(right, each)]
    shards = [training.numbers(p.to_local()) for p in sharded.parameters()]
    return {
        "errors": [_off(actual, due) for actual, due in zip(shards, mine)],
        "gathered": [_off(training.numbers(actual), due) for actual, due in zip(unsharded, right)],
        "held": sum(map(len, shards)),
        "total": sum(map(len, right)),
        "ended": training.digest(torch, unsharded),
    }


def _off(actual: list[float], right: list[float]) -> float:
    return training.off(actual, right) if right or actual else 0.0


def _fully_shard(torch: Any, kind: str) -> tuple[Any, str | None]:
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < SINCE:
        return None, f"torch {torch.__version__} has no FSDP2 (2.4 has)"
    if kind == "cpu" and version < CPU_SINCE:
        return None, f"the FSDP2 of torch {torch.__version__} is for GPUs alone"
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        # Its home until 2.5. That neither can be imported is no absence but a broken torch: let it be raised.
        from torch.distributed._composable.fsdp import fully_shard
    return fully_shard, None


@process_group.sound(alone="one rank cannot shard a model")
def judge(view: View, ranks: Ranks) -> Outcome:  # noqa: ARG001 (a judge's signature)
    """Fail on weights that are not one process's, that ranks gather differently, or that were never sharded."""
    reasons = {entry.get("unsupported") for entry in ranks}
    if None not in reasons:
        return skipped(min(map(str, reasons)), code="fsdp.unsupported")
    for entry in ranks:
        losses = entry.get("losses") or []
        complete = entry.get("errors") and entry.get("gathered") and entry.get("ended")
        if not complete or len(losses) != STEPS or not all(process_group.finite(loss) and loss >= 0 for loss in losses):
            summary, who = f"rank {entry['rank']} took {len(losses)} of {STEPS} steps", f"rank {entry['rank']}"
            return undecided(summary, code="fsdp.unmeasured", culprit=who)
    findings, most = [], 0.0
    for kind in ("errors", "gathered"):
        # Every rank is off after one was, that one the most.
        error, number = max((_worst(entry[kind]), -entry["rank"]) for entry in ranks)
        findings += [_apart(ranks[-number], kind, error)] if error > LIMIT.value else []
        most = max(most, error)
    together = (training.drifted(ranks, "ended", "when gathered"), _incomplete(ranks))
    findings += [problem for problem in together if problem]
    where = f"{len(ranks)} ranks over {ranks[0]['backend']}"
    summary = f"{ranks[0]['total']} parameters sharded over {where} train as in one process"
    about = {"digest": ranks[0]["ended"], "seed": ranks[0].get("seed")}
    return worst(findings, otherwise=passed(summary, value=most, limit=LIMIT, **about))


def _worst(errors: list[Any]) -> float:
    return max(float(error) if process_group.finite(error) and error >= 0 else math.inf for error in errors)


def _apart(entry: Measured, kind: str, error: float) -> Outcome:
    whose = "its shard of the weights" if kind == "errors" else "what it gathered"
    who, code = f"rank {entry['rank']}", "fsdp.weights" if kind == "errors" else "fsdp.gathered"
    judged: dict[str, Any] = {"value": error, "limit": LIMIT, "rank": entry["rank"]}
    summary = f"{who}: {whose} is off by {error} from one process's"
    return failed(summary, fix=_FIX, code=code, culprit=who, errors=entry[kind], **judged)


def _incomplete(ranks: Ranks) -> process_group.Problem:
    held: list[Any] = [entry.get("held") for entry in ranks]
    total: Any = ranks[0].get("total")
    if all(process_group.finite(count) for count in (*held, total)) and max(held) < total == sum(held):
        return None
    summary = f"the ranks held {held} of {total} parameters: they were not sharded"
    return failed(summary, fix="reinstall or update torch, as its FSDP2 is broken", held=held, code="fsdp.not-sharded")
