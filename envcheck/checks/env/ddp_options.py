"""DDP right by default, and wrong with the option that a training script sets.

Seen in the wild: find_unused_parameters that leaves out what another rank used, gradients lost in a small bucket, views
into buckets that an optimizer overwrote, statistics that each rank keeps for itself, `join` that divides by the wrong
number of ranks. The loss of each rank is a sum of its parameters times small integers, so each gradient is known
beforehand, and the average of the ranks' integers is exact but for one rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View
from envcheck.checks.env.support.collectives import process_group
from envcheck.checks.env.support.optimizers import optimizer_formulas
from envcheck.checks.env.support.training import model_replicas, plain_math, promise_cases

CHECK = Check(
    promise="DDP's options keep their word: small buckets, unused parameters, views, static graphs, buffers, join",
    level="full",
    seconds=3.0,
    cpu_seconds=0.9,
    timeout=180.0,
    ranks=0,
    least_ranks=2,
    imports=("torch._dynamo",),
)

# LARGE parts together are more than the first bucket of 1 MiB (torch.distributed._DEFAULT_FIRST_BUCKET_BYTES).
PARTS, SIZE, LARGE, STEPS = 8, 1021, 40_961, 3
BUCKET_MB = 0.2
_PERIOD = 16
NAMES = (
    "small buckets",
    "small buckets under a hook",
    "find_unused_parameters",
    "gradient_as_bucket_view",
    "static_graph",
    "broadcast_buffers",
    "buffers of one's own",
    "join, divided by all ranks",
    "join, divided by the ranks that are left",
    "SyncBatchNorm",
    "ZeroRedundancyOptimizer",
    "post-local SGD",
    "parameters of other kinds",
)
RATE, MOMENTUM, LOCAL_FROM = 0.25, 0.5, 2
LIMIT = Limit(
    1e-6, "of the largest gradient", "averages of integers below 64 in float32: one rounding (ours)", "at most"
)
_FIX = "run the ddp and collectives checks: right there, leave this option out, or reinstall torch"


def measure(rank: Rank) -> Measured:
    """Take a few steps under each option; return how far the gradients are from the average known beforehand."""
    import torch

    device = process_group.device_of(rank)
    with process_group.group(rank) as dist:
        cases = _Options(torch, dist, rank, device).cases() if rank.world > 1 else {}
        where = process_group.standing(rank, torch.zeros(1, device=device), dist.get_backend())
        return {**where, "cases": promise_cases.run(cases)}


def coefficients(rank: int, part: int, step: int) -> list[float]:
    """Return the period of what a rank multiplies a part of the parameters by in a step: its gradient."""
    return [float((7 * place + 5 * part + 3 * rank + step) % _PERIOD + 1) for place in range(_PERIOD)]


def whole(period: list[float], size: int) -> list[float]:
    """Return a period repeated up to a size."""
    return (period * (size // _PERIOD + 1))[:size]


def average(ranks: Sequence[int], part: int, step: int, divisor: int, factor: float = 1.0) -> list[float]:
    """Return the period of the gradient of a part that these ranks used, divided by so many."""
    columns = zip(*(coefficients(rank, part, step) for rank in ranks))
    return [factor * sum(column) / divisor for column in columns]


class _Options:
    def __init__(self, torch: Any, dist: Any, rank: Rank, device: Any) -> None:
        self.torch, self.dist, self.rank, self.device = torch, dist, rank, device
        self.every = range(rank.world)

    def cases(self) -> dict[str, promise_cases.Case]:
        tries: tuple[promise_cases.Case, ...] = (self.small, self.hooked, self.unused, self.views, self.static)
        tries += (partial(self.buffers, shared=True), partial(self.buffers, shared=False))
        tries += (partial(self.joined, by_all=True), partial(self.joined, by_all=False), self.synchronised_norm)
        tries += (self.zero, self.post_local, self.other_kinds)
        return dict(zip(NAMES, tries))

    def model(self, parts: int = PARTS, size: int = SIZE, **options: Any) -> Any:
        """Return parameters under DDP whose loss is their sum, times the coefficients that are given."""
        torch = self.torch

        module: Any = torch.nn.Module

        class PartedModel(module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.held = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(size)) for _ in range(parts))
                self.register_buffer("level", torch.zeros(3))

            def forward(self, factors: dict[int, Any]) -> Any:
                return sum((self.held[part] * factor).sum() for part, factor in factors.items())

        return model_replicas.wrap(self.rank, PartedModel().to(self.device), **options)

    def factors(self, step: int, parts: Sequence[int], size: int = SIZE) -> dict[int, Any]:
        """Return this rank's coefficients of these parts as tensors."""
        mine = self.rank.rank
        return {
            part: self.torch.tensor(whole(coefficients(mine, part, step), size), device=self.device) for part in parts
        }

    def off(self, model: Any, right: dict[int, list[float]]) -> float:
        """Return how far the gradients of some parts are off; infinite where there is none."""
        held = model.module.held
        errors = [
            plain_math.off(model_replicas.numbers(held[part].grad), whole(period, held[part].numel()))
            for part, period in right.items()
        ]
        return next((error for error in errors if math.isnan(error)), max(errors))

    def steps(self, model: Any, parts: Sequence[int] = range(PARTS), *, twice: bool = False) -> float:
        """Take STEPS steps that use these parts, or use them twice over; return the largest error."""
        worst = 0.0
        for step in range(STEPS):
            model.zero_grad(set_to_none=False)
            loss = model(self.factors(step, parts, model.module.held[0].numel()))
            (loss + loss if twice else loss).backward()
            right = {p: average(self.every, p, step, len(self.every), 2.0 if twice else 1.0) for p in parts}
            worst = max(worst, self.off(model, right))
        return worst

    def small(self) -> float:
        """Send gradients in buckets that are smaller than the parameters together."""
        return self.steps(self.model(size=LARGE, bucket_cap_mb=BUCKET_MB))

    def hooked(self) -> float | str:
        """Count the buckets by a hook that averages as DDP does."""
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        seen: list[int] = []

        def send(bucket: Any) -> Any:
            seen.append(int(bucket.buffer().numel()))
            return default_hooks.allreduce_hook(None, bucket)

        model = self.model(size=LARGE, bucket_cap_mb=BUCKET_MB)
        # DDP refuses a hook whose annotations are not its own; a lambda has none.
        model.register_comm_hook(None, lambda _state, bucket: send(bucket))
        error = self.steps(model)
        if sum(seen) != STEPS * PARTS * LARGE:
            return f"{sum(seen)} elements were sent in {STEPS} steps, not {STEPS * PARTS * LARGE}"
        if len(seen) <= STEPS:
            return f"{len(seen)} buckets in {STEPS} steps: bucket_cap_mb={BUCKET_MB} is ignored"
        return error

    def unused(self) -> float | str:
        """Leave out another part on each rank, and one on all: that one gets no gradient."""
        model, worst = self.model(find_unused_parameters=True), 0.0
        for step in range(STEPS):
            model.zero_grad(set_to_none=True)
            left = {rank: (rank + step) % (PARTS - 1) for rank in self.every}
            parts = [part for part in range(PARTS - 1) if part != left[self.rank.rank]]
            model(self.factors(step, parts)).backward()
            users = {part: [rank for rank in self.every if left[rank] != part] for part in range(PARTS - 1)}
            right = {part: average(ranks, part, step, len(self.every)) for part, ranks in users.items() if ranks}
            worst = max(worst, self.off(model, right))
            grad = model.module.held[PARTS - 1].grad
            if grad is not None and any(plain_math.numbers(grad)):
                return "a parameter that no rank used has a gradient"
        return worst

    def views(self) -> float | str:
        """Keep gradients as views into buckets: several of them lie in one block of memory."""
        model = self.model(gradient_as_bucket_view=True)
        error = self.steps(model)
        grads = [parameter.grad for parameter in model.module.held]
        blocks = {
            (grad.untyped_storage() if hasattr(grad, "untyped_storage") else grad.storage()).data_ptr()
            for grad in grads
        }
        return (
            error
            if len(blocks) < len(grads)
            else "gradient_as_bucket_view=True is ignored: no two gradients share memory"
        )

    def static(self) -> float:
        """Say that the graph never changes, use each part twice, and leave one out."""
        return self.steps(self.model(static_graph=True), range(PARTS - 1), twice=True)

    def buffers(self, *, shared: bool) -> str | None:
        """Give each rank a buffer of its own: the forward pass makes it rank 0's, or leaves it alone."""
        model = self.model(1, broadcast_buffers=shared)
        for step in range(STEPS):
            mine = [float(10 * step + self.rank.rank)] * 3
            model.module.level.copy_(self.torch.tensor(mine))
            model(self.factors(step, [0])).backward()
            actual, right = plain_math.numbers(model.module.level), [10.0 * step] * 3 if shared else mine
            if actual != right:
                return f"the buffer is {actual} in step {step}, not {right}"
        return None

    def joined(self, *, by_all: bool) -> float | str:
        """Have each rank take one step more than the one before it: those that are done add nothing."""
        model, worst, world = self.model(2), 0.0, len(self.every)
        with model.join(divide_by_initial_world_size=by_all):
            for step in range(self.rank.rank + 1):
                model.zero_grad(set_to_none=False)
                model(self.factors(step, range(2))).backward()
                left = [rank for rank in self.every if rank >= step]
                divisor = world if by_all else len(left)
                right = {part: average(left, part, step, divisor) for part in range(2)}
                worst = max(worst, self.off(model, right))
        return worst

    def synchronised_norm(self) -> float:
        """Normalise by the mean and variance of all ranks' samples."""
        if self.device.type == "cpu":
            message = "SyncBatchNorm works on GPUs alone (its documentation)"
            raise promise_cases.AbsentFeature(message)
        torch, count = self.torch, 6
        model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(torch.nn.BatchNorm1d(1, eps=0.0)).to(self.device)
        samples = plain_math.values("samples", count * len(self.every), 2.0)
        own = slice(count * self.rank.rank, count * (self.rank.rank + 1))
        actual = model_replicas.wrap(self.rank, model)(torch.tensor([[x] for x in samples[own]], device=self.device))
        mean = sum(samples) / len(samples)
        width = math.sqrt(sum((x - mean) ** 2 for x in samples) / len(samples))
        return plain_math.off(plain_math.numbers(actual), [(x - mean) / width for x in samples[own]])

    def walked(self, model: Any, optimizer: Any, steps: int) -> list[list[float]]:
        """Step on all parts; return the parameters."""
        for step in range(steps):
            model.zero_grad(set_to_none=False)
            model(self.factors(step, range(len(model.module.held)))).backward()
            optimizer.step()
        return [plain_math.numbers(parameter) for parameter in model.module.held]

    def zero(self) -> float | str:
        """Have each rank keep the momentum of some parameters, and step for all."""
        from torch.distributed.optim import ZeroRedundancyOptimizer

        # No rank may be without a parameter.
        parts = max(PARTS, len(self.every))
        model, torch = self.model(parts), self.torch
        options = {"lr": RATE, "momentum": MOMENTUM}
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.SGD, **options)
        actual = self.walked(model, optimizer, STEPS)
        kept = len(optimizer.optim.state)
        if not 0 < kept < parts:
            return f"this rank keeps the momentum of {kept} of {parts} parameters: they are not shared out"
        errors = []
        for part, values in enumerate(actual):
            given = [average(self.every, part, step, len(self.every)) for step in range(STEPS)]
            right = optimizer_formulas.trajectory("SGD", [0.0] * _PERIOD, given, options)
            errors.append(plain_math.off(values, whole(right, SIZE)))
        return model_replicas.worst(errors)

    def post_local(self) -> float:
        """Average gradients in the first steps, then each rank's own, and the parameters every second step."""
        from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as hooks
        from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
        from torch.distributed.optim import PostLocalSGDOptimizer

        alone = [self.dist.new_group([rank]) for rank in self.every][self.rank.rank]
        model, steps = self.model(), LOCAL_FROM + 2
        state = hooks.PostLocalSGDState(process_group=None, subgroup=alone, start_localSGD_iter=LOCAL_FROM)
        model.register_comm_hook(state, hooks.post_localSGD_hook)
        averager = PeriodicModelAverager(period=2, warmup_steps=LOCAL_FROM)
        sgd = self.torch.optim.SGD(model.parameters(), lr=RATE)
        actual = self.walked(model, PostLocalSGDOptimizer(optim=sgd, averager=averager), steps)
        errors = []
        for part, values in enumerate(actual):
            # Averaged after the first step of a rank's own: as if that gradient had been averaged too.
            given = [average(self.every, part, step, len(self.every)) for step in range(steps - 1)]
            given.append(coefficients(self.rank.rank, part, steps - 1))
            right = [-RATE * sum(column) for column in zip(*given)]
            errors.append(plain_math.off(values, whole(right, SIZE)))
        return model_replicas.worst(errors)

    def other_kinds(self) -> float | str:
        """Wrap a frozen parameter, one of a single number, one of bfloat16 and one with two names."""
        torch, mine, device = self.torch, self.rank.rank + 1.0, self.device
        kinds = {"single": torch.zeros(1), "narrow": torch.zeros(_PERIOD, dtype=torch.bfloat16), "tied": torch.zeros(5)}
        base: Any = torch.nn.Module

        class KindsModel(base):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                for name, start in kinds.items():
                    self.register_parameter(name, torch.nn.Parameter(start.to(device)))
                self.again = self.tied
                self.frozen = torch.nn.Parameter(torch.full((3,), mine, device=device), requires_grad=False)

            def forward(self, factor: float) -> Any:
                parts = (self.single, self.narrow, self.tied, self.again, self.frozen)
                return sum((part.float() * factor).sum() for part in parts)

        model = model_replicas.wrap(self.rank, KindsModel().to(device))
        # The average of twice 1 to `world` is a whole number: exact in bfloat16.
        model(2 * mine).backward()
        average_factor = len(self.every) + 1.0
        if plain_math.numbers(model.module.frozen) != [1.0] * 3:
            return f"a frozen parameter of rank 0 is 1, and is {plain_math.numbers(model.module.frozen)[0]} here"
        names = {f"module.{name}" for name in (*kinds, "again", "frozen")}
        state = model.state_dict()
        if set(state) != names or any(state[f"module.{name}"].dtype != start.dtype for name, start in kinds.items()):
            return "the state of the wrapped model has other names or types than its module"
        errors = []
        for name in kinds:
            gradient = plain_math.numbers(getattr(model.module, name).grad)
            right = [average_factor * (1 + (name == "tied"))] * len(gradient)
            errors.append(plain_math.off(gradient, right))
        return model_replicas.worst(errors)


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail naming each option whose gradients, buffers or statistics are not those known beforehand."""
    gpu = view.mode == "gpu"
    terms = promise_cases.Terms(
        NAMES, lambda _name: LIMIT, "ddp.options", _FIX, lambda name: name == "SyncBatchNorm" and not gpu
    )
    return promise_cases.judge(view, ranks, terms, backend=True)
