"""What users do with optimizers: large tensors, groups that come later, hooks, averages with buffers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from envcheck.checks.env.support.optimizers import optimizer_formulas, seeded_parameters
from envcheck.checks.support import promise_cases
from envcheck.checks.training import plain_math

# What the large tensors are made of again and again, so that the reference stays short: beyond 2^13, and odd.
PERIOD, TIMES = 1031, 9
REPEATED = PERIOD * TIMES
# Adafactor and SparseAdam step whole tensors, or parts of them.
LARGE = ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Adadelta", "Adamax", "NAdam", "RAdam", "ASGD", "Rprop")
# Numbers of bfloat16 have eight bits: what mixed training without master weights keeps.
NARROW = ("SGD", "Adam", "AdamW")
OTHERS = (
    "a parameter group that comes later",
    "a parameter without a gradient stays",
    "a rate that is a tensor",
    "hooks before and after each step",
    "statistics of averaged weights",
    "average of weights and buffers",
    "Muon, as it comes",
)
NAMES = (
    *(f"{name} of a large tensor" for name in LARGE),
    *(f"{name} of tensors of {REPEATED} numbers" for name in NARROW),
    *(f"{name} in bfloat16" for name in NARROW),
    *(f"{name} of 120 steps" for name in NARROW),
    *OTHERS,
)
AVERAGES = ("running average of weights", "equal average of weights")
# What came to torch later than 1.13; a rate may be a tensor since 2.1, without flaws since 2.4.
LATER = (*OTHERS[2:5], OTHERS[6])
TENSOR_RATE_SINCE = (2, 4)
# Of the way: parameters, moments and steps are each rounded to 2^-9. Seen at 0.0083 (ours).
_BF16 = 0.05
# Seen right in this release; earlier ones were not tried.
FUSED_NARROW_SINCE = (2, 13)
# No multiple of any vector's or block's width, and more than one block of a kernel.
ROWS, WIDTH, STEPS = 2, 1031, 3
_MUON = (5, 7)
# So many steps, over which a few gradients come again and again.
LONG, SHORT_CYCLE = 120, 7

# Rates at which the way is long against what bfloat16 rounds.
_FAST: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.125, "momentum": 0.75},
    "Adam": {"lr": 0.125, "betas": (0.75, 0.875), "eps": 1e-3},
    "AdamW": {"lr": 0.125, "betas": (0.75, 0.875), "eps": 1e-3, "weight_decay": 0.25},
}

Make = Callable[[str, Any, dict[str, Any], str], Any]


class LargeProblemCases:
    """The cases, on numbers from a seed; `make` is what makes an optimizer, or says that this torch has none."""

    def __init__(self, torch: Any, device: Any, seed: int, make: Make) -> None:
        self.torch, self.device, self.make = torch, device, make
        self.start = plain_math.values(f"{seed} large", ROWS * WIDTH)
        self.gradients = [plain_math.values(f"{seed} large {step}", ROWS * WIDTH, 2.0) for step in range(STEPS)]

    def cases(self) -> dict[str, promise_cases.Case]:
        """Return each case by its name."""
        tries: tuple[promise_cases.Case, ...] = tuple(partial(self.large, name) for name in LARGE)
        tries += tuple(partial(self.repeated, name) for name in NARROW)
        tries += tuple(partial(self.narrow, name) for name in NARROW)
        tries += tuple(partial(self.many_steps, name) for name in NARROW)
        tries += (self.added, self.without, self.tensor_rate, self.hooks, self.statistics, self.buffers, self.muon)
        return dict(zip(NAMES, tries))

    def tensor(self, flat: list[float], *shape: int) -> Any:
        """Return a flat list as a float64 tensor."""
        return self.torch.tensor(flat, dtype=self.torch.float64, device=self.device).reshape(shape or (-1,))

    def walk(self, optimizer: Any, parameter: Any, first: int = 0, last: int = STEPS) -> None:
        """Step with the given gradients, cut to the parameter's size."""
        for gradient in self.gradients[first:last]:
            parameter.grad = self.tensor(gradient[: parameter.numel()], *parameter.shape)
            optimizer.step()

    def off(self, parameter: Any, right: list[float]) -> float:
        """Return how far a parameter is from where it should be, as a share of the longest way."""
        way = max(abs(end - start) for end, start in zip(right, self.start))
        return plain_math.off(plain_math.numbers(parameter), right, way)

    def large(self, name: str) -> float:
        """Walk a tensor of some thousand elements in each implementation."""
        right, errors = optimizer_formulas.trajectory(name, self.start, self.gradients, {}), []
        for kind in ("as it comes", "one by one", "foreach", "fused"):
            parameter = self.torch.nn.Parameter(self.tensor(self.start, ROWS, WIDTH))
            try:
                optimizer = self.make(name, [parameter], {}, kind)
            except promise_cases.AbsentFeature:
                if kind == "as it comes":
                    raise
                continue
            self.walk(optimizer, parameter)
            errors.append(self.off(parameter, right))
        return math.nan if any(map(math.isnan, errors)) else max(errors)

    def repeated(self, name: str) -> float:
        """Walk a tensor of some ten thousand elements, and many small ones beside it, in each implementation."""
        start, given = self.start[:PERIOD], [gradient[:PERIOD] for gradient in self.gradients]
        right, errors = optimizer_formulas.trajectory(name, start, given, _FAST[name]), []
        for kind in ("as it comes", "one by one", "foreach", "fused"):
            long, short = self.tensor(start).repeat(TIMES), [self.tensor(start[n : n + 1]) for n in range(TIMES)]
            parameters = [self.torch.nn.Parameter(tensor) for tensor in (long, *short)]
            try:
                optimizer = self.make(name, parameters, _FAST[name], kind)
            except promise_cases.AbsentFeature:
                if kind == "as it comes":
                    raise
                continue
            for gradient in given:
                parameters[0].grad = self.tensor(gradient).repeat(TIMES)
                for place, parameter in enumerate(parameters[1:]):
                    parameter.grad = self.tensor(gradient[place : place + 1])
                optimizer.step()
            ends = [x for parameter in parameters[1:] for x in plain_math.numbers(parameter)]
            whole = plain_math.numbers(parameters[0])
            way = max(abs(end - begin) for end, begin in zip(right, start))
            errors += [plain_math.off(whole, right * TIMES, way), plain_math.off(ends, right[:TIMES], way)]
        return math.nan if any(map(math.isnan, errors)) else max(errors)

    def narrow(self, name: str) -> float | str:
        """Walk parameters of bfloat16 from 0 on: within a twentieth of the way, or it is another algorithm."""
        torch, errors, count = self.torch, dict[str, float](), 64
        # Gradients that bfloat16 holds exactly, and none near 0, where a sign is everything.
        given = [[math.copysign(0.5 + int(abs(g) * 32) / 64, g) for g in step[:count]] for step in self.gradients]
        right = optimizer_formulas.trajectory(name, [0.0] * count, given, _FAST[name])
        for kind in ("as it comes", "one by one", "foreach", *(["fused"] if self.fused_in_bfloat16(name) else [])):
            parameter = torch.nn.Parameter(torch.zeros(count, dtype=torch.bfloat16, device=self.device))
            try:
                optimizer = self.make(name, [parameter], _FAST[name], kind)
            except promise_cases.AbsentFeature:
                if kind == "as it comes":
                    raise
                continue
            for gradient in given:
                parameter.grad = self.tensor(gradient).to(torch.bfloat16)
                optimizer.step()
            errors[kind] = plain_math.off(plain_math.numbers(parameter), right, max(map(abs, right)))
        return next((f"{kind}: off by {error}" for kind, error in errors.items() if not error <= _BF16), 0.0)

    def many_steps(self, name: str) -> float:
        """Walk on long after corrections of the first steps have faded, in each implementation."""
        flat, count = self.gradients[0], 5
        given = [flat[step % SHORT_CYCLE * count :][:count] for step in range(LONG)]
        right, errors = optimizer_formulas.trajectory(name, self.start[:count], given, _FAST[name]), []
        for kind in ("as it comes", "one by one", "foreach", "fused"):
            parameter = self.small(count)
            try:
                optimizer = self.make(name, [parameter], _FAST[name], kind)
            except promise_cases.AbsentFeature:
                if kind == "as it comes":
                    raise
                continue
            for gradient in given:
                parameter.grad = self.tensor(gradient)
                optimizer.step()
            errors.append(self.off(parameter, right))
        return math.nan if any(map(math.isnan, errors)) else max(errors)

    def fused_in_bfloat16(self, name: str) -> bool:
        """Return whether a fused step of bfloat16 can be judged: SGD's leaves it where it is on a CPU (torch 2.13)."""
        return name != "SGD" and tuple(map(int, self.torch.__version__.split(".")[:2])) >= FUSED_NARROW_SINCE

    def small(self, count: int = 9) -> Any:
        """Return a parameter of the first numbers."""
        return self.torch.nn.Parameter(self.tensor(self.start[:count]))

    def right(self, name: str, options: dict[str, Any], first: int = 0, count: int = 9) -> list[float]:
        """Return where the first numbers end, from a step on."""
        gradients = [gradient[:count] for gradient in self.gradients[first:]]
        return optimizer_formulas.trajectory(name, self.start[:count], gradients, options)

    def added(self) -> float:
        """Give an optimizer a second group with options of its own after its first step."""
        one, other, own = self.small(), self.small(), {"lr": 0.2, "weight_decay": 0.3}
        optimizer = self.make("AdamW", [one], {"lr": 0.05}, "as it comes")
        self.walk(optimizer, one, 0, 1)
        optimizer.add_param_group({"params": [other], **own})
        for gradient in self.gradients[1:]:
            one.grad = other.grad = self.tensor(gradient[:9])
            optimizer.step()
        return max(self.off(one, self.right("AdamW", {"lr": 0.05})), self.off(other, self.right("AdamW", own, 1)))

    def without(self) -> float | str:
        """Step while one parameter has no gradient: weight decay does not move it either."""
        one, other = self.small(), self.small()
        for name in ("AdamW", "SGD"):
            optimizer = self.make(name, [one, other], {"lr": 0.05, "weight_decay": 0.5}, "as it comes")
            one.grad = self.tensor(self.gradients[0][:9])
            optimizer.step()
            if plain_math.numbers(other) != self.start[:9]:
                return f"{name} moves a parameter without a gradient"
        return 0.0

    def tensor_rate(self) -> float:
        """Give a rate as a tensor, and change it in place."""
        if tuple(int(part) for part in self.torch.__version__.split(".")[:2]) < TENSOR_RATE_SINCE:
            message = f"torch {self.torch.__version__} takes no tensor for a rate"
            raise promise_cases.AbsentFeature(message)
        parameter = self.small()
        optimizer = self.make("Adam", [parameter], {"lr": self.torch.tensor(0.05)}, "one by one")
        self.walk(optimizer, parameter)
        # The rate is a float32.
        error = self.off(parameter, self.right("Adam", {"lr": 0.05}))
        return error if not error <= 1e-6 else 0.0  # noqa: PLR2004 (as said)

    def hooks(self) -> str | None:
        """Count the hooks of each step, and the order in which they come."""
        parameter, seen = self.small(), list[str]()
        optimizer = self.make("SGD", [parameter], {"lr": 0.1}, "as it comes")
        if not hasattr(optimizer, "register_step_pre_hook"):
            message = f"torch {self.torch.__version__} has no hooks of optimizers"
            raise promise_cases.AbsentFeature(message)
        optimizer.register_step_pre_hook(lambda *_: seen.append("before" if len(seen) % 2 == 0 else "late"))
        optimizer.register_step_post_hook(lambda *_: seen.append("after"))
        self.walk(optimizer, parameter)
        return None if seen == ["before", "after"] * STEPS else f"in {STEPS} steps came {', '.join(seen) or 'none'}"

    def statistics(self) -> float:
        """Have update_bn take a normalisation's statistics anew: the mean of the batches' means and variances."""
        torch, count = self.torch, 6
        norm = torch.nn.BatchNorm1d(1).to(self.device, torch.float64)
        norm.running_mean.fill_(9.0)
        batches = [gradient[:count] for gradient in self.gradients]
        torch.optim.swa_utils.update_bn([self.tensor(batch, count, 1) for batch in batches], norm)
        means = [math.fsum(batch) / count for batch in batches]
        spreads = [math.fsum((x - m) ** 2 for x in batch) / (count - 1) for batch, m in zip(batches, means)]
        actual = [*plain_math.numbers(norm.running_mean), *plain_math.numbers(norm.running_var)]
        return plain_math.off(actual, [math.fsum(means) / len(means), math.fsum(spreads) / len(spreads)])

    def buffers(self) -> float:
        """Average a module's weights and buffers alike."""
        torch = self.torch
        module = torch.nn.Module()
        module.weight, count = self.small(), 9
        module.register_buffer("level", self.tensor(self.start[:count]))
        average = torch.optim.swa_utils.AveragedModel(module, use_buffers=True)
        for gradient in self.gradients:
            with torch.no_grad():
                module.weight.copy_(self.tensor(gradient[:count]))
                module.level.copy_(self.tensor(gradient[count : 2 * count]))
            average.update_parameters(module)
        columns = zip(*self.gradients)
        means = [math.fsum(column) / STEPS for column in columns][: 2 * count]
        actual = [*plain_math.numbers(average.module.weight), *plain_math.numbers(average.module.level)]
        return plain_math.off(actual, means)

    def muon(self) -> float:
        """Walk Muon, whose products are in bfloat16: within a twentieth of the way, or it is another algorithm."""
        rows, width = _MUON
        if not hasattr(self.torch.optim, "Muon"):
            message = f"torch {self.torch.__version__} has no Muon"
            raise promise_cases.AbsentFeature(message)
        options = {"lr": 0.02, "weight_decay": 0.1}
        parameter = self.torch.nn.Parameter(self.tensor(self.start[: rows * width], rows, width))
        self.walk(self.torch.optim.Muon([parameter], **options), parameter)
        error = self.off(parameter, optimizer_formulas.muon(self.start, self.gradients, _MUON, **options))
        return error if not error <= 0.05 else 0.0  # noqa: PLR2004 (as said)


def averages(seeded: seeded_parameters.SeededParameters) -> dict[str, promise_cases.Case]:
    """Return the cases of averages with a decay, and of all states alike."""
    return dict(zip(AVERAGES, (partial(_averaged, seeded, decay) for decay in (0.75, None))))


def _averaged(seeded: seeded_parameters.SeededParameters, decay: float | None) -> float:
    """Average a moving weight: with a decay, or every state alike."""
    module = seeded.torch.nn.Linear(len(seeded.start), 1, bias=False).to(seeded.device, seeded.torch.float64)

    def rule(old: Any, new: Any, _count: Any) -> Any:
        return (decay or 0.0) * old + (1 - (decay or 0.0)) * new

    average = seeded.torch.optim.swa_utils.AveragedModel(module, **({"avg_fn": rule} if decay else {}))
    right: list[float] = []
    for count, gradient in enumerate(seeded.gradients):
        module.weight.data = seeded.row(gradient)
        average.update_parameters(module)
        share = (1 - decay if decay else 1 / (count + 1)) if count else 1.0
        right = [old + share * (new - old) for old, new in zip(right or gradient, gradient)]
    return plain_math.off(plain_math.numbers(average.module.weight), right)
