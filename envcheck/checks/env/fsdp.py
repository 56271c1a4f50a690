"""Sharded training that gathers another model than the one that was sharded.

Seen in the wild: FSDP2 on a torch whose reduce-scatter averages twice, parameters that were not gathered again after a
step, shards of uneven length whose padding is trained. Each layer is sharded over the ranks (its sizes do not divide by
them), trained a few steps, and gathered: the weights have to be those of one process on the whole batch.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from envcheck.checks import (
    PASS,
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
from envcheck.checks.env.support.collectives import gloo_gaps, process_group
from envcheck.checks.env.support.training import model_replicas, plain_math, promise_cases
from envcheck.checks.env.support.training.sharded import tensor_parallel

CHECK = Check(
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
# up the gradients that FSDP2 asks it to average (`gloo_gaps`): each step is as many times too long as there are ranks.
CPU_SINCE = (2, 8)
STEPS = 4
PER_RANK, WIDTH = 8, 51
RATE = 0.05
LIMIT = Limit(
    1e-5,
    "relative error",
    "fp32 after a few steps of plain gradient descent: only the order of adding differs, seen at 1e-7 on a CPU (ours)",
    "at most",
)


_FIX = "run collectives and ddp: right there, reinstall or update torch, as its FSDP is broken"
VARIANT = Limit(1e-4, "of the way", "fp32 against the chain rule in float64, seen at 4e-6 (ours)", "at most")
VARIANTS = (
    "kept gathered",
    "bf16 policy",
    "gradients clipped",
    "FSDP1",
    "gradients accumulated",
    "gradients accumulated without sending",
    "parameters kept on the CPU",
    "tensor parallel",
)
_BF16 = Limit(0.02, "of the way", "parameters are cast to bf16 (2^-8); seen at 0.003 (ours)", "at most")


def measure(rank: Rank) -> Measured:
    """Train sharded; say how far shards, gathered weights and variants are from what plain Python computes."""
    import torch

    device, seed = process_group.device_of(rank), plain_math.seed_of(rank)
    with process_group.group(rank) as dist:
        where = {**process_group.standing(rank, torch.zeros(1, device=device), dist.get_backend()), "seed": seed}
        fully_shard, why = _fully_shard(torch, device.type)
        if fully_shard is None or rank.world == 1:
            return {**where, "unsupported": why}
        task = _ShardedTask(torch, rank, device, seed)
        sharded = _sharded(dist, task.model(), fully_shard, device)
        losses = [task.step(sharded, step) for step in range(STEPS)]
        variants = _Variants(task, dist, fully_shard)
        return {
            **where,
            "losses": losses,
            **_compared(torch, rank, sharded, task),
            "cases": promise_cases.run(variants.cases()),
        }


class _ShardedTask:
    """A model, its batches, and the weights that plain gradient descent ends with, computed in plain Python."""

    def __init__(self, torch: Any, rank: Rank, device: Any, seed: int) -> None:
        self.torch, self.rank, self.device, self.seed = torch, rank, device, seed
        count = rank.world * PER_RANK
        self.batches = [model_replicas.batch(torch, f"{seed} {step}", count, WIDTH, device) for step in range(STEPS)]
        self.start = [plain_math.flat(part) for part in model_replicas.weights(self.model())]
        self.right = self.trained()

    def model(self) -> Any:
        """Return the model with the weights of the seed."""
        module = model_replicas.model(self.torch, WIDTH).to(self.device)
        model_replicas.start(self.torch, module, self.seed)
        return module

    def trained(self, most: float = math.inf) -> list[list[float]]:
        """Return the weights after all steps; gradients are clipped to a norm of `most`."""
        now = self.start
        for batch in self.batches:
            shaped = [plain_math.rows(now[0], WIDTH), now[1], plain_math.rows(now[2], WIDTH), now[3]]
            gradients = plain_math.two_layers(shaped, *batch.rows)[1]
            norm = math.sqrt(sum(plain_math.dot(part, part) for part in gradients))
            share = min(1.0, most / (norm + 1e-6))
            now = [[x - RATE * share * g for x, g in zip(part, grad)] for part, grad in zip(now, gradients)]
        return now

    def accumulated(self, sharded: Any, step: int, *, sends: bool) -> None:
        """Take one step on this rank's share of a batch, a half at a time; send gradients each time, or at the end."""
        optimizer, half = self.torch.optim.SGD(sharded.parameters(), lr=RATE), PER_RANK // 2
        optimizer.zero_grad()
        for part in range(2):
            inputs, targets = self.batches[step].share(self.rank.rank * PER_RANK + part * half, half).tensors
            sharded.set_requires_gradient_sync(sends or part == 1)
            (self.torch.nn.functional.mse_loss(sharded(inputs), targets) / 2).backward()
        optimizer.step()

    def step(self, sharded: Any, step: int, clip: float = 0.0) -> float:
        """Take one step on this rank's share of a batch; return the loss there."""
        inputs, targets = self.batches[step].share(self.rank.rank * PER_RANK, PER_RANK).tensors
        optimizer = self.torch.optim.SGD(sharded.parameters(), lr=RATE)
        optimizer.zero_grad()
        loss = self.torch.nn.functional.mse_loss(sharded(inputs).float(), targets)
        loss.backward()
        if clip:
            self.torch.nn.utils.clip_grad_norm_(sharded.parameters(), clip)
        optimizer.step()
        return float(loss.detach())

    def off(self, whole: list[list[float]], right: list[list[float]]) -> float:
        """Return how far weights are from where they should be, as a share of the longest way."""
        way = max(abs(end - begin) for part, old in zip(right, self.start) for end, begin in zip(part, old))
        return model_replicas.worst(plain_math.off(got, part, way) for got, part in zip(whole, right))


class _Variants:
    """The options of sharding that users set."""

    def __init__(self, task: _ShardedTask, dist: Any, fully_shard: Any) -> None:
        self.task, self.dist, self.fully_shard = task, dist, fully_shard

    def cases(self) -> dict[str, promise_cases.Case]:
        """Return a case for each variant."""
        tries: tuple[promise_cases.Case, ...] = (self.kept, self.lower, self.clipped, self.first)
        tries += (partial(self.accumulated, sends=True), partial(self.accumulated, sends=False), self.offloaded)
        return dict(zip(VARIANTS, (*tries, self.split)))

    def trained(self, clip: float = 0.0, **options: Any) -> float:
        """Train under some options; return how far the gathered weights are."""
        sharded = _sharded(self.dist, self.task.model(), self.fully_shard, self.task.device, **options)
        for step in range(STEPS):
            self.task.step(sharded, step, clip)
        whole = [plain_math.numbers(p.full_tensor()) for p in sharded.parameters()]
        return self.task.off(whole, self.task.trained(clip or math.inf))

    def kept(self) -> float:
        """Keep parameters gathered between forward and backward."""
        return self.trained(reshard_after_forward=False)

    def lower(self) -> float:
        """Compute in bf16, reduce in float32."""
        torch = self.task.torch
        try:
            from torch.distributed.fsdp import MixedPrecisionPolicy
        except ImportError:
            from torch.distributed._composable.fsdp import MixedPrecisionPolicy
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        return self.trained(mp_policy=policy)

    def clipped(self) -> float:
        """Clip by the norm over all shards."""
        return self.trained(clip=0.05)

    def accumulated(self, *, sends: bool) -> float:
        """Add up the gradients of two halves: they are those of the whole."""
        sharded = _sharded(self.dist, self.task.model(), self.fully_shard, self.task.device)
        for step in range(STEPS):
            self.task.accumulated(sharded, step, sends=sends)
        return self.task.off([plain_math.numbers(p.full_tensor()) for p in sharded.parameters()], self.task.right)

    def only_on_cpus(self) -> None:
        """Raise Absent on a GPU: the cases that call this have not met one yet."""
        if self.task.rank.device != "cpu":
            message = "tried on CPUs alone"
            raise promise_cases.Absent(message)

    def split(self) -> float | str:
        """Split layers by columns and rows."""
        self.only_on_cpus()
        return tensor_parallel.trained(self.task.torch, self.task.rank, self.dist)

    def offloaded(self) -> float | str:
        """Keep shards, gradients and steps on the CPU."""
        self.only_on_cpus()
        try:
            from torch.distributed.fsdp import CPUOffloadPolicy
        except ImportError:
            from torch.distributed._composable.fsdp import CPUOffloadPolicy
        policy, task = CPUOffloadPolicy(pin_memory=False), self.task
        sharded = _sharded(self.dist, task.model(), self.fully_shard, task.device, offload_policy=policy)
        for step in range(STEPS):
            task.step(sharded, step)
        held = [(p.to_local(), p.shape[0], p.numel() // p.shape[0]) for p in sharded.parameters()]
        if any(local.device.type != "cpu" for local, _, _ in held):
            return "the shards are not on the CPU"
        pairs = [(local, _mine(task.rank, right, *shape)) for (local, *shape), right in zip(held, task.right)]
        # What has no row of a parameter holds nothing of it.
        way = max(abs(x - y) for new, old in zip(task.right, task.start) for x, y in zip(new, old))
        errors = [0.0, *(plain_math.off(plain_math.numbers(got), right, way) for got, right in pairs if right)]
        lost = [1 for got, right in pairs if len(right) != got.numel()]
        return "a shard has another size" if lost else model_replicas.worst(errors)

    def first(self) -> float:
        """Shard by FullyShardedDataParallel, flattened into one parameter."""
        from torch.distributed.fsdp import FullyShardedDataParallel

        if self.task.device.type != "cuda":
            message = "FSDP1 needs an accelerator (torch says so itself)"
            raise promise_cases.Absent(message)
        sharded = FullyShardedDataParallel(self.task.model(), device_id=self.task.device)
        for step in range(STEPS):
            self.task.step(sharded, step)
        with FullyShardedDataParallel.summon_full_params(sharded):
            whole = [plain_math.numbers(p) for p in sharded.module.parameters()]
        return self.task.off(whole, self.task.right)


def _compared(torch: Any, rank: Rank, sharded: Any, task: _ShardedTask) -> Measured:
    """Return how far this rank's shards and what it gathers are from the reference, and how many it held."""
    whole = [p.full_tensor().detach() for p in sharded.parameters()]
    shapes = [(p.shape[0], p.numel() // p.shape[0]) for p in whole]
    mine = [_mine(rank, part, *shape) for part, shape in zip(task.right, shapes)]
    shards = [plain_math.numbers(p.to_local()) for p in sharded.parameters()]
    return {
        "errors": [_off(got, right) for got, right in zip(shards, mine)],
        "gathered": [_off(plain_math.numbers(got), right) for got, right in zip(whole, task.right)],
        "held": sum(map(len, shards)),
        "total": sum(map(len, task.right)),
        "ended": model_replicas.digest(torch, whole),
    }


def _mine(rank: Rank, whole: list[float], rows: int, width: int) -> list[float]:
    """Return the rows of a parameter that this rank holds; the last ranks may hold fewer, or none."""
    each = math.ceil(rows / rank.world) * width
    return whole[rank.rank * each : (rank.rank + 1) * each]


def _off(got: list[float], right: list[float]) -> float:
    return plain_math.off(got, right) if right or got else 0.0


def _fully_shard(torch: Any, kind: str) -> tuple[Any, str | None]:
    """Return FSDP2, or None and why this torch has none for this kind of device."""
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < SINCE:
        return None, f"torch {torch.__version__} has no FSDP2 (2.4 has)"
    if kind == "cpu" and version < CPU_SINCE:
        return None, f"the FSDP2 of torch {torch.__version__} is for GPUs alone"
    if kind == "cpu" and gloo_gaps.ignores_operation("gloo", torch.__version__, "reduce-scatter", "average"):
        return None, f"the FSDP2 of torch {torch.__version__} is for GPUs alone: {gloo_gaps.SUMS_ONLY}"
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        # Its home until 2.5. That neither can be imported is no absence but a broken torch: let it be raised.
        from torch.distributed._composable.fsdp import fully_shard
    return fully_shard, None


def _sharded(dist: Any, model: Any, fully_shard: Any, device: Any, **options: Any) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail on weights that are not one process's, that ranks gather differently, or that were never sharded."""
    problem = process_group.problem(view, ranks)
    if problem is not None:
        return problem
    if len(ranks) == 1:
        return skipped("one rank cannot shard a model", code="rank.not-enough")
    reasons = {entry.get("unsupported") for entry in ranks}
    if None not in reasons:
        return skipped(min(map(str, reasons)), code="fsdp.unsupported")
    for entry in ranks:
        losses = entry.get("losses") or []
        whole = entry.get("errors") and entry.get("gathered") and entry.get("ended")
        if not whole or len(losses) != STEPS or not all(process_group.finite(loss) and loss >= 0 for loss in losses):
            return undecided(
                f"rank {entry['rank']} took {len(losses)} of {STEPS} steps",
                fix="see the check's log",
                code="fsdp.unmeasured",
                culprit=f"rank {entry['rank']}",
            )
    found, most = [], 0.0
    for kind in ("errors", "gathered"):
        # Every rank is off after one was, that one the most.
        error, number = max((_worst(entry[kind]), -entry["rank"]) for entry in ranks)
        found += [_apart(ranks[-number], kind, error)] if error > LIMIT.value else []
        most = max(most, error)
    found += [
        problem for problem in (model_replicas.drifted(ranks, "ended", "when gathered"), _whole(ranks)) if problem
    ]
    varied = promise_cases.judge(view, ranks, promise_cases.Terms(VARIANTS, _limit, "fsdp.variant", _FIX), backend=True)
    return worst([*found, *([] if varied.status == PASS else [varied])], _passed(ranks, most))


def _limit(name: str) -> Limit:
    return _BF16 if name == "bf16 policy" else VARIANT


def _worst(errors: list[Any]) -> float:
    return max(float(error) if process_group.finite(error) and error >= 0 else math.inf for error in errors)


def _apart(entry: Measured, kind: str, error: float) -> Outcome:
    whose = "its shard of the weights" if kind == "errors" else "what it gathered"
    return failed(
        f"rank {entry['rank']}: {whose} is off by {error} from one process's",
        fix=_FIX,
        value=error if process_group.finite(error) else None,
        unit=LIMIT.unit,
        limit=LIMIT,
        rank=entry["rank"],
        errors=entry[kind],
        code="fsdp.weights" if kind == "errors" else "fsdp.gathered",
        culprit=f"rank {entry['rank']}",
    )


def _whole(ranks: Ranks) -> process_group.Problem:
    """Return the failure that a rank held everything, or all together not everything."""
    held: list[Any] = [entry.get("held") for entry in ranks]
    total: Any = ranks[0].get("total")
    if all(process_group.finite(count) for count in (*held, total)) and max(held) < total == sum(held):
        return None
    said = f"the ranks held {held} of {total} parameters: they were not sharded"
    return failed(said, fix="reinstall or update torch, as its FSDP2 is broken", held=held, code="fsdp.not-sharded")


def _passed(ranks: Ranks, worst: float) -> Outcome:
    return passed(
        f"{ranks[0]['total']} parameters sharded over {len(ranks)} ranks over {ranks[0]['backend']} train as in one "
        "process",
        value=worst,
        unit=LIMIT.unit,
        limit=LIMIT,
        digest=ranks[0]["ended"],
        seed=ranks[0].get("seed"),
    )
