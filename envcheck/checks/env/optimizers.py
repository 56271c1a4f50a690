"""An optimizer that steps, and not by its own formula: the loss still falls, and the run is another one.

Seen in the wild: betas that were swapped by a patched image, weight decay that is coupled where it should not be, a
fused kernel that skips a parameter, a schedule that restarts on resume, gradients clipped by each rank's own norm. Each
algorithm walks a few steps on given gradients, in each of its implementations, and has to end where the documented
formula ends, computed here in plain Python; so have schedules, clipping, accumulation, restored state and averages.
"""

from __future__ import annotations

import copy
import inspect
import io
import math
import re
from functools import partial
from typing import Any

from envcheck.checks import Check, Limit, Measured, Outcome, Rank, Ranks, View
from envcheck.checks.env.support.collectives import process_group
from envcheck.checks.env.support.operators import seeded_numbers
from envcheck.checks.env.support.optimizers import (
    clipping_cases,
    optimizer_cases,
    optimizer_formulas,
    schedule_formulas,
)
from envcheck.checks.env.support.training import plain_math, promise_cases

CHECK = Check(
    promise="optimizers, schedules and gradient clipping follow their documented formulas, in every implementation",
    level="standard",
    seconds=2.0,
    cpu_seconds=0.9,
    timeout=120.0,
    imports=("torch._dynamo",),  # by the first optimizer
)

WALK = 8
# Seen: 2.1 is off by 0.002 of the way, 2.4 is right; no implementation is foreach by default on a CPU.
ASGD_FOREACH_SINCE = (2, 4)
SHAPES = ((3, 5), (7,), (1, 2, 2))
SIZES = tuple(math.prod(shape) for shape in SHAPES)
OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "SGD": {
        "momentum": {"lr": 0.03, "momentum": 0.9, "dampening": 0.2, "weight_decay": 0.05},
        "nesterov": {"lr": 0.03, "momentum": 0.8, "nesterov": True, "maximize": True},
    },
    "Adam": {"options": {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1, "amsgrad": True}},
    "AdamW": {
        "options": {"lr": 0.02, "betas": (0.85, 0.97), "eps": 1e-3, "weight_decay": 0.3},
        "amsgrad": {"lr": 0.02, "weight_decay": 0.2, "amsgrad": True, "maximize": True},
    },
    "Adagrad": {"options": {"lr": 0.1, "lr_decay": 0.2, "weight_decay": 0.1, "initial_accumulator_value": 0.3}},
    "RMSprop": {"options": {"lr": 0.01, "alpha": 0.9, "weight_decay": 0.1, "momentum": 0.5, "centered": True}},
    "Adadelta": {"options": {"lr": 0.5, "rho": 0.8, "eps": 1e-4, "weight_decay": 0.1}},
    "Adamax": {"options": {"lr": 0.02, "betas": (0.8, 0.95), "weight_decay": 0.1}},
    "NAdam": {"options": {"lr": 0.02, "betas": (0.8, 0.95), "weight_decay": 0.1, "momentum_decay": 0.01}},
    "RAdam": {"options": {"lr": 0.02, "betas": (0.8, 0.95), "weight_decay": 0.1}},
    "ASGD": {"options": {"lr": 0.05, "lambd": 0.1, "alpha": 0.5, "t0": 3.0, "weight_decay": 0.1}},
    "Rprop": {"options": {"lr": 0.02, "etas": (0.4, 1.3), "step_sizes": (1e-3, 0.05)}},
    "SparseAdam": {
        "options": {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-3},
        "maximize": {"lr": 0.02, "maximize": True},
    },
    "Adafactor": {
        "options": {"lr": 0.5, "beta2_decay": -0.6, "eps": (0.3, 0.01), "d": 1.5, "weight_decay": 0.1},
        "maximize": {"lr": 0.03, "eps": (1e-6, 2.0), "maximize": True},
    },
}
KINDS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "one by one": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "capturable": {"capturable": True},
}
# The others have one implementation, or two of the three.
HAVE = {"SparseAdam": ("as it comes",), "Adafactor": ("as it comes", "one by one", "foreach")}
ADAFACTOR_SINCE = (2, 5)
WALKS = [
    f"{name}, {option}, {kind}"
    for name in OPTIONS
    for option in ("defaults", *OPTIONS[name])
    for kind in HAVE.get(name, tuple(KINDS))
]
# Beside the kinds that have no float32 of their own to try.
NARROW = [kind for kind in KINDS if kind != "capturable"]
SINGLES = [f"{name} in float32, {kind}" for name in OPTIONS for kind in NARROW if kind in HAVE.get(name, NARROW)]
OTHERS = [
    "two parameter groups",
    *[f"{name} resumed from its state" for name in OPTIONS],
    *[f"{name} steps by a closure" for name in OPTIONS],
    *clipping_cases.NAMES,
    *(f"momentum of {name}" for name in schedule_formulas.MOVES_MOMENTUM),
    *optimizer_cases.NAMES,
    "accumulated gradients",
    "zero_grad to none",
    "zero_grad to zero",
    "running average of weights",
    "equal average of weights",
    "LBFGS finds the minimum",
]
NAMES = [*WALKS, *SINGLES, *(f"schedule {name}" for name in schedule_formulas.FORMULAS), *OTHERS]
_SOURCE = "distance to the documented formula's end in plain Python, as a share of the way walked; ours, "
LIMITS = {
    "float64": Limit(1e-7, "of the way", f"{_SOURCE}seen at 3e-9 (NAdam keeps one factor in float32)", "at most"),
    "float32": Limit(1e-3, "of the way", f"{_SOURCE}float32 parameters or step counts, seen at 2e-5", "at most"),
    # torch/optim/lbfgs.py learns nothing from a step whose curvature is below 1e-10: the last steps use an old one.
    "minimum": Limit(1e-4, "of the way", f"{_SOURCE}LBFGS, seen at 1.2e-6 in 2000 seeds", "at most"),
}
_FIX = "reinstall torch: its optimizers do not follow their documentation; compare them with the wheel's own files"
_FUSED_ELSEWHERE = ("`fused=True` requires all the params to be", "requires all the params to be CUDA")


def limit_of(name: str) -> Limit:
    """Return what a case may be off by: capturable steps count in float32, and ASGD keeps its rate in float32."""
    if name.startswith("LBFGS"):
        return LIMITS["minimum"]
    narrow = " in float32" in name or name.endswith("capturable") or name.startswith("ASGD")
    return LIMITS["float32" if narrow else "float64"]


def measure(rank: Rank) -> Measured:
    """Walk each algorithm in each implementation; return how far from the formula's end each is."""
    import torch

    device = process_group.device_of(rank)
    seed = plain_math.seed_of(rank)
    walker = _Walker(torch, device, seed)
    where = process_group.standing(rank, torch.zeros(1, device=device))
    return {**where, "seed": seed, "cases": promise_cases.run(walker.cases())}


class _Walker:
    """Start, gradients and cases of one seed on one device."""

    def __init__(self, torch: Any, device: Any, seed: int) -> None:
        self.torch, self.device, self.seed = torch, device, seed
        self.start = plain_math.values(f"{seed} start", sum(SIZES))
        self.gradients = [plain_math.values(f"{seed} {step}", sum(SIZES), 2.0) for step in range(WALK)]

    def cases(self) -> dict[str, promise_cases.Case]:
        """Return every case by its name."""
        found: dict[str, promise_cases.Case] = {}
        for name, options in OPTIONS.items():
            for label, chosen in {"defaults": {}, **options}.items():
                kinds = HAVE.get(name, tuple(KINDS))
                found |= {f"{name}, {label}, {kind}": partial(self.walk, name, chosen, kind) for kind in kinds}
            for kind in NARROW:
                if kind in HAVE.get(name, NARROW):
                    found[f"{name} in float32, {kind}"] = partial(self.walk, name, {}, kind, "float32")
            found[f"{name} resumed from its state"] = partial(self.resumed, name)
            found[f"{name} steps by a closure"] = partial(self.closure, name)
        found |= {f"schedule {name}": partial(self.schedule, name) for name in schedule_formulas.FORMULAS}
        found |= {f"momentum of {name}": partial(self.momenta, name) for name in schedule_formulas.MOVES_MOMENTUM}
        found |= optimizer_cases.More(self.torch, self.device, self.seed, self.optimizer).cases()
        found |= self.clipping().cases()
        mine: tuple[promise_cases.Case, ...] = (self.groups, self.accumulated)
        mine += (partial(self.zeroed, to_none=True), partial(self.zeroed, to_none=False))
        mine += (partial(self.averaged, 0.75), partial(self.averaged, None), self.lbfgs)
        rest = [name for name in OTHERS if name not in found]
        return {**found, **dict(zip(rest, mine))}

    def parameters(self, dtype: str = "float64") -> list[Any]:
        """Return the start as parameters of SHAPES."""
        return [self.torch.nn.Parameter(tensor) for tensor in self.tensors(self.start, dtype)]

    def tensors(self, flat: list[float], dtype: str = "float64") -> list[Any]:
        """Return a flat list as tensors of SHAPES."""
        parts, first = [], 0
        for shape, size in zip(SHAPES, SIZES):
            data = self.torch.tensor(flat[first : first + size], dtype=getattr(self.torch, dtype), device=self.device)
            parts.append(data.reshape(shape))
            first += size
        return parts

    def optimizer(self, name: str, parameters: Any, options: dict[str, Any], kind: str) -> Any:
        """Return torch's optimizer; Absent where this one is not made in that way here."""
        made = getattr(self.torch.optim, name, None)
        if made is None:
            message = f"torch {self.torch.__version__} has no {name}"
            raise promise_cases.Absent(message)
        if name == "NAdam" and self.torch.__version__.startswith("1."):
            # Its source multiplies the product of the momenta by the step's momentum twice; 2.x does so once.
            message = f"the NAdam of torch {self.torch.__version__} is another one than documented"
            raise promise_cases.Absent(message)
        taken = inspect.signature(made.__init__).parameters
        flags = KINDS[kind]
        for flag in {**options, **flags}:
            if flag not in taken:
                message = f"{name} of torch {self.torch.__version__} takes no {flag}"
                raise promise_cases.Absent(message)
        if "capturable" in flags and self.device.type == "cpu":
            message = "capturable is for CUDA graphs"
            raise promise_cases.Absent(message)
        if name == "ASGD" and kind == "foreach" and self.version() < ASGD_FOREACH_SINCE:
            message = f"the foreach ASGD of torch {self.torch.__version__} walks another way than its formula"
            raise promise_cases.Absent(message)
        least = {"lr": optimizer_formulas.DEFAULTS["SGD"]["lr"]} if name == "SGD" and "lr" not in options else {}
        try:
            return made(parameters, **options, **flags, **least)
        except RuntimeError as error:
            # The documented refusal of a fused kernel for a device that has none; anything else is a failure.
            if "fused" in flags and any(words in str(error) for words in _FUSED_ELSEWHERE):
                raise promise_cases.Absent(str(error)) from error
            raise

    def version(self) -> tuple[int, ...]:
        """Return torch's version as (major, minor)."""
        return tuple(int(part) for part in self.torch.__version__.split(".")[:2])

    def steps(self, optimizer: Any, parameters: list[Any], first: int, last: int) -> None:
        """Step with the given gradients."""
        for step in range(first, last):
            self.give(optimizer, parameters, step)
            optimizer.step()

    def give(self, optimizer: Any, parameters: list[Any], step: int) -> None:
        """Give the parameters their gradients of that step; SparseAdam takes sparse ones alone."""
        sparse = type(optimizer).__name__ == "SparseAdam"
        gradients = self.sparse(self.thin(step)) if sparse else self.tensors(self.gradients[step])
        for parameter, grad in zip(parameters, gradients):
            parameter.grad = grad.to(parameter.dtype)

    def thin(self, step: int) -> list[float]:
        """Return a step's gradient with zeros in every place that is missing from a sparse one: in every third."""
        return [g if (place + step) % 3 else 0.0 for place, g in enumerate(self.gradients[step])]

    def sparse(self, flat: list[float]) -> list[Any]:
        """Return a flat list as sparse tensors of SHAPES, each element in two parts, which have to be added up."""
        made, first = [], 0
        for shape, size in zip(SHAPES, SIZES):
            steps = seeded_numbers.strides(shape)
            kept = [place for place in range(size) if flat[first + place]] * 2
            indices = [[place // step % width for place in kept] for step, width in zip(steps, shape)]
            halves = [flat[first + place] / 2 for place in kept]
            values = self.torch.tensor(halves, dtype=self.torch.float64, device=self.device)
            where = self.torch.tensor(indices, dtype=self.torch.int64, device=self.device)
            made.append(self.torch.sparse_coo_tensor(where, values, shape))
            first += size
        return made

    def right(self, name: str, options: dict[str, Any], dtype: str = "float64") -> list[float]:
        """Return where the documented formula ends."""
        if name == "Adafactor":
            return optimizer_formulas.adafactor(SHAPES, self.start, self.gradients, options, dtype)
        thin = [self.thin(step) for step in range(WALK)] if name == "SparseAdam" else self.gradients
        return optimizer_formulas.trajectory(name, self.start, thin, options)

    def distance(self, parameters: list[Any], right: list[float]) -> float:
        """Return how far parameters are from where they should be, as a share of the way."""
        way = max(abs(end - start) for end, start in zip(right, self.start))
        return plain_math.off([x for parameter in parameters for x in plain_math.numbers(parameter)], right, way)

    def walk(self, name: str, options: dict[str, Any], kind: str, dtype: str = "float64") -> float:
        """Walk all gradients in one implementation."""
        parameters = self.parameters(dtype)
        self.steps(self.optimizer(name, parameters, options, kind), parameters, 0, WALK)
        return self.distance(parameters, self.right(name, options, dtype))

    def resumed(self, name: str) -> float:
        """Walk half, save the state, load it into a new optimizer made with other options, walk on."""
        options = next(iter(OPTIONS[name].values()))
        parameters = self.parameters()
        before = self.optimizer(name, parameters, options, "as it comes")
        self.steps(before, parameters, 0, WALK // 2)
        file = io.BytesIO()
        self.torch.save(before.state_dict(), file)
        file.seek(0)
        after = self.optimizer(name, parameters, {}, "as it comes")
        # The safe loader of 1.13 does not read Python floats; the file is this function's own.
        safe = not self.torch.__version__.startswith("1.")
        after.load_state_dict(self.torch.load(file, weights_only=safe))
        self.steps(after, parameters, WALK // 2, WALK)
        return self.distance(parameters, self.right(name, options))

    def groups(self) -> float:
        """Give the last tensor options of its own."""
        parameters, own = self.parameters(), {"lr": 0.1, "weight_decay": 0.4}
        groups = [{"params": parameters[:-1]}, {"params": parameters[-1:], **own}]
        self.steps(self.torch.optim.AdamW(groups, lr=0.01, weight_decay=0.0), parameters, 0, WALK)
        cut = sum(SIZES[:-1])
        shares = ((slice(0, cut), {"lr": 0.01, "weight_decay": 0.0}), (slice(cut, None), own))
        right = [
            end
            for share, options in shares
            for end in optimizer_formulas.trajectory(
                "AdamW", self.start[share], [g[share] for g in self.gradients], options
            )
        ]
        return self.distance(parameters, right)

    def schedule(self, name: str) -> float:
        """Follow a schedule of two groups, whole and from its state half-way on; return how far its rates are off."""
        if not hasattr(self.torch.optim.lr_scheduler, name.split(",", maxsplit=1)[0]):
            message = f"torch {self.torch.__version__} has no {name}"
            raise promise_cases.Absent(message)
        epochs = schedule_formulas.EPOCHS
        right = [schedule_formulas.FORMULAS[name](epoch) for epoch in range(epochs)]
        right += [schedule_formulas.second(name, rate) for rate in right]
        rates, resumed = self.scheduled(name), self.scheduled(name, epochs // 2)
        return max(plain_math.off([*one, *other], right) for one, other in (zip(*rates), zip(*resumed)))

    def scheduled(self, name: str, again: int = 0) -> list[tuple[float, float]]:
        """Return the rates of both groups at each epoch; at `again` all is made anew and loads the states."""

        def made() -> tuple[Any, Any]:
            parameters, rate = self.parameters(), schedule_formulas.RATE
            groups = [{"params": parameters[:-1]}, {"params": parameters[-1:], "lr": rate / 4}]
            optimizer = self.torch.optim.SGD(groups, lr=rate)
            return optimizer, schedule_formulas.build(self.torch, name, optimizer)

        (optimizer, schedule), rates = made(), []
        for epoch in range(schedule_formulas.EPOCHS):
            if again and epoch == again:
                old = copy.deepcopy((optimizer.state_dict(), schedule.state_dict()))
                optimizer, schedule = made()
                optimizer.load_state_dict(old[0])
                schedule.load_state_dict(old[1])
            rates.append((float(optimizer.param_groups[0]["lr"]), float(optimizer.param_groups[1]["lr"])))
            optimizer.step()
            if epoch + 1 < schedule_formulas.EPOCHS:
                schedule.step(*([schedule_formulas.METRICS[epoch]] if name.startswith("ReduceLROnPlateau") else []))
        return rates

    def momenta(self, name: str) -> float:
        """Follow the momentum that a schedule moves against the rate."""
        optimizer = self.torch.optim.SGD(self.parameters(), lr=schedule_formulas.RATE, momentum=0.5)
        made = getattr(self.torch.optim.lr_scheduler, name)
        schedule, got = made(optimizer, **schedule_formulas.MOVES_MOMENTUM[name]), []
        for epoch in range(schedule_formulas.EPOCHS):
            got.append(float(optimizer.param_groups[0]["momentum"]))
            optimizer.step()
            if epoch + 1 < schedule_formulas.EPOCHS:
                schedule.step()
        return plain_math.off(got, [schedule_formulas.momentum(name, epoch) for epoch in range(len(got))])

    def clipping(self) -> clipping_cases.Clipping:
        """Return the cases of clipping, on tensors of SHAPES."""
        return clipping_cases.Clipping(self.torch, self.gradients[0], self.given)

    def given(self, flat: list[float]) -> list[Any]:
        """Return parameters that have these gradients."""
        parameters = self.parameters()
        for parameter, grad in zip(parameters, self.tensors(flat)):
            parameter.grad = grad
        return parameters

    def closure(self, name: str) -> float | str:
        """Step by a closure: it is called with gradients enabled, and its loss is returned."""
        parameters = self.parameters()
        optimizer = self.optimizer(name, parameters, {}, "as it comes")
        enabled = []
        for number in range(WALK):

            def closure(number: int = number) -> float:
                enabled.append(self.torch.is_grad_enabled())
                self.give(optimizer, parameters, number)
                return float(number)

            if optimizer.step(closure) != float(number):
                return "step does not return the closure's loss"
        if enabled != [True] * len(self.gradients):
            return f"the closure was called {len(enabled)} times in {len(self.gradients)} steps, or without gradients"
        return self.distance(parameters, self.right(name, {}))

    def accumulated(self) -> float:
        """Go backward three times: gradients add up."""
        parameters = self.parameters()
        for gradient in self.gradients[:3]:
            sum((p * g).sum() for p, g in zip(parameters, self.tensors(gradient))).backward()
        got = [x for p in parameters for x in plain_math.numbers(p.grad)]
        return plain_math.off(got, [sum(step) for step in zip(*self.gradients[:3])])

    def zeroed(self, *, to_none: bool) -> str | None:
        """Forget the gradients."""
        parameters = self.given(self.gradients[0])
        self.torch.optim.SGD(parameters, lr=0.1).zero_grad(set_to_none=to_none)
        left = [parameter.grad for parameter in parameters]
        if to_none:
            return None if all(grad is None for grad in left) else "gradients are kept"
        zero = all(grad is not None and not any(plain_math.numbers(grad)) for grad in left)
        return None if zero else "gradients are not zero"

    def averaged(self, decay: float | None) -> float:
        """Average a moving weight: with a decay, or every state alike."""
        module = self.torch.nn.Linear(len(self.start), 1, bias=False).to(self.device, self.torch.float64)

        def rule(old: Any, new: Any, _count: Any) -> Any:
            return (decay or 0.0) * old + (1 - (decay or 0.0)) * new

        average = self.torch.optim.swa_utils.AveragedModel(module, **({"avg_fn": rule} if decay else {}))
        right: list[float] = []
        for count, gradient in enumerate(self.gradients):
            module.weight.data = self.tensors_flat(gradient)
            average.update_parameters(module)
            share = (1 - decay if decay else 1 / (count + 1)) if count else 1.0
            right = [old + share * (new - old) for old, new in zip(right or gradient, gradient)]
        return plain_math.off(plain_math.numbers(average.module.weight), right)

    def tensors_flat(self, flat: list[float]) -> Any:
        """Return one row of a float64 weight."""
        return self.torch.tensor([flat], dtype=self.torch.float64, device=self.device)

    def lbfgs(self) -> float:
        """Minimise half of sum c (x - m)^2 from its analytic gradient: the minimum is m."""
        curves = [1 + abs(value) for value in self.gradients[0]]
        parameter = self.torch.nn.Parameter(self.tensors_flat(self.start))
        optimizer = self.torch.optim.LBFGS([parameter], lr=1.0, max_iter=60, tolerance_grad=1e-12, tolerance_change=0)

        def closure() -> float:
            now = plain_math.numbers(parameter)
            gaps = [x - wish for x, wish in zip(now, self.gradients[1])]
            parameter.grad = self.tensors_flat([c * gap for c, gap in zip(curves, gaps)])
            return sum(c * gap * gap for c, gap in zip(curves, gaps)) / 2

        optimizer.step(closure)
        return plain_math.off(plain_math.numbers(parameter), self.gradients[1])


def judge(view: View, ranks: Ranks) -> Outcome:
    """Fail naming each algorithm, schedule or helper that does not follow its formula."""
    known = re.match(r"(\d+)\.(\d+)", str(view.environment.get("torch") or ""))
    version = tuple(map(int, known.groups())) if known else ADAFACTOR_SINCE

    def may_lack(name: str) -> bool:
        lacking = (version < (2,) and name.startswith("NAdam")) or (
            version < ADAFACTOR_SINCE and name.startswith("Adafactor")
        )
        return _may_lack(name) or lacking

    return promise_cases.judge(view, ranks, promise_cases.Terms(NAMES, limit_of, "optimizers.formula", _FIX, may_lack))


def _may_lack(name: str) -> bool:
    later = name in optimizer_cases.LATER or name.endswith((", foreach", ", fused", ", capturable"))
    return later or ", nesterov," in name or ", amsgrad," in name
