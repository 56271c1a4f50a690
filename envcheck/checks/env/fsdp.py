"""Sharded training that gathers another model than the one that was sharded.

Seen in the wild: FSDP2 on a torch whose reduce-scatter averages twice, parameters that were not gathered again after a
step, shards of uneven length whose padding is trained. Each layer is sharded over the ranks (its sizes do not divide by
them), trained a few steps, and gathered: the weights have to be those of one process on the whole batch.
"""

from __future__ import annotations

import copy
import math
from typing import Any

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View, failed, passed, skipped, undecided
from envcheck.checks.env import _group, _replicas

CHECK = Check(
    promise="training sharded by FSDP2 ends with the weights that one process ends with on the same global batch",
    level="full",
    seconds=3.0,
    timeout=180.0,
    ranks=0,
    least_ranks=2,
    imports=("torch._dynamo",),  # by the first optimizer
)

# The first that was seen without a GPU is 2.8; the device's own module is asked for since 2.6.
CPU_SINCE = (2, 6)
STEPS = 4
PER_RANK, WIDTH = 8, 51
RATE = 0.05
LIMIT = Limit(
    1e-5,
    "relative error",
    "fp32 after a few steps of plain gradient descent: only the order of adding differs, seen at 1e-7 on a CPU (ours)",
    "at most",
)


def measure(rank: Rank) -> Measured:
    """Train sharded, and in one process beside it; say how far apart the weights are, and how many this rank held."""
    import torch

    device = _group.device_of(rank)
    with _group.group(rank) as dist:
        where = _group.standing(rank, torch.zeros(1, device=device), dist.get_backend())
        fully_shard, why = _fully_shard(torch, device.type)
        if fully_shard is None or rank.world == 1:
            return {**where, "unsupported": why}
        torch.manual_seed(51)
        layers = torch.nn
        alone = layers.Sequential(layers.Linear(WIDTH, WIDTH), layers.Tanh(), layers.Linear(WIDTH, 7)).to(device)
        sharded = _sharded(dist, copy.deepcopy(alone), fully_shard, device)
        losses = [_step(torch, rank, sharded, alone, step, device) for step in range(STEPS)]
        return {**where, "losses": losses, **_compared(torch, rank, sharded, alone)}


def _compared(torch: Any, rank: Rank, sharded: Any, alone: Any) -> Measured:
    """Return how far this rank's shards and what it gathers are from one process's weights, and how many it held."""
    reference = list(alone.parameters())
    whole = [p.full_tensor().detach() for p in sharded.parameters()]
    return {
        "errors": [_off(p.to_local(), _mine(rank, other)) for p, other in zip(sharded.parameters(), reference)],
        "gathered": [_off(one, other) for one, other in zip(whole, reference)],
        "held": sum(p.to_local().numel() for p in sharded.parameters()),
        "total": sum(p.numel() for p in reference),
        "ended": _replicas.digest(torch, whole),
    }


def _mine(rank: Rank, whole: Any) -> Any:
    """Return the part of a parameter that this rank holds; the last ranks may hold none."""
    parts = whole.chunk(rank.world)
    return parts[rank.rank] if rank.rank < len(parts) else whole[:0]


def _off(got: Any, reference: Any) -> float:
    return float((got - reference).detach().norm() / reference.detach().norm()) if reference.numel() else 0.0


def _fully_shard(torch: Any, kind: str) -> tuple[Any, str | None]:
    """Return FSDP2, or None and why this torch has none for this kind of device."""
    # It called torch.cuda by name until 2.5: on a machine without a GPU that is an error of CUDA's.
    if kind == "cpu" and tuple(int(part) for part in torch.__version__.split(".")[:2]) < CPU_SINCE:
        return None, f"the FSDP2 of torch {torch.__version__} is for GPUs alone"
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        try:
            from torch.distributed._composable.fsdp import fully_shard
        except ImportError:
            return None, f"torch {torch.__version__} has no FSDP2 (2.4 has)"
    return fully_shard, None


def _sharded(dist: Any, model: Any, fully_shard: Any, device: Any) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _step(torch: Any, rank: Rank, sharded: Any, alone: Any, step: int, device: Any) -> float:
    """Take the same step sharded and alone; return the loss on this rank's share."""
    generator = torch.Generator().manual_seed(70 + step)
    inputs = torch.randn(rank.world * PER_RANK, WIDTH, generator=generator).to(device)
    targets = torch.randn(rank.world * PER_RANK, 7, generator=generator).to(device)
    mine = slice(rank.rank * PER_RANK, (rank.rank + 1) * PER_RANK)
    loss = torch.nn.functional.mse_loss(sharded(inputs[mine]), targets[mine])
    loss.backward()
    torch.nn.functional.mse_loss(alone(inputs), targets).backward()
    with torch.no_grad():
        for parameter in (*sharded.parameters(), *alone.parameters()):
            parameter.sub_(RATE * parameter.grad)
            parameter.grad = None
    return float(loss.detach())


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail on weights that are not one process's, that ranks gather differently, or that were never sharded."""
    found = _group.problem(view, ranks)
    if found is not None:
        return found
    if len(ranks) == 1:
        return skipped("one rank has nobody to shard with")
    reasons = {entry.get("unsupported") for entry in ranks}
    if None not in reasons:
        return skipped(min(map(str, reasons)))
    worst = 0.0
    for entry in ranks:
        losses = entry.get("losses") or []
        whole = entry.get("errors") and entry.get("gathered") and entry.get("ended")
        if not whole or len(losses) != STEPS or not all(_group.finite(loss) and loss >= 0 for loss in losses):
            return undecided(f"rank {entry['rank']} took {len(losses)} of {STEPS} steps", fix="see the check's log")
    for kind in ("errors", "gathered"):
        # Every rank is off after one was, that one the most.
        error, number = max((_worst(entry[kind]), -entry["rank"]) for entry in ranks)
        if error > LIMIT.value:
            return _apart(ranks[-number], kind, error)
        worst = max(worst, error)
    return _replicas.drifted(ranks, "ended", "when gathered") or _whole(ranks) or _passed(ranks, worst)


def _worst(errors: list[Any]) -> float:
    return max(float(error) if _group.finite(error) and error >= 0 else math.inf for error in errors)


def _apart(entry: Measured, kind: str, error: float) -> Outcome:
    whose = "its shard of the weights" if kind == "errors" else "what it gathered"
    return failed(
        f"rank {entry['rank']}: {whose} is off by {error} from one process's",
        fix="run collectives and ddp: right there, reinstall or update torch, as its FSDP2 is broken",
        value=error if _group.finite(error) else None,
        unit=LIMIT.unit,
        limit=LIMIT,
        rank=entry["rank"],
        errors=entry[kind],
    )


def _whole(ranks: Ranks) -> _group.Problem:
    """Return the failure that a rank held everything, or all together not everything."""
    held: list[Any] = [entry.get("held") for entry in ranks]
    total: Any = ranks[0].get("total")
    if all(_group.finite(count) for count in (*held, total)) and max(held) < total == sum(held):
        return None
    said = f"the ranks held {held} of {total} parameters: they were not sharded"
    return failed(said, fix="reinstall or update torch, as its FSDP2 is broken", held=held)


def _passed(ranks: Ranks, worst: float) -> Outcome:
    return passed(
        f"{ranks[0]['total']} parameters sharded over {len(ranks)} ranks over {ranks[0]['backend']} train as in one "
        "process",
        value=worst,
        unit=LIMIT.unit,
        limit=LIMIT,
        digest=ranks[0]["ended"],
    )
