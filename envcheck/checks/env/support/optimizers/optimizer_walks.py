"""Walks of each optimizer on given gradients: whole, resumed, by a closure, in groups; and the minimum of LBFGS."""

from __future__ import annotations

import io
from functools import partial
from typing import Any

from envcheck.checks.env.support.optimizers import implementations, optimizer_formulas, seeded_parameters
from envcheck.checks.support import promise_cases
from envcheck.checks.training import plain_math

NAMES = [
    *(
        f"{name}, {label}, {kind}"
        for name in implementations.OPTIONS
        for label in ("defaults", *implementations.OPTIONS[name])
        for kind in implementations.of(name)
    ),
    *(
        f"{name} in float32, {kind}"
        for name in implementations.OPTIONS
        for kind in implementations.of(name, implementations.NARROW)
    ),
]
OTHERS = [
    "two parameter groups",
    *(f"{name} resumed from its state" for name in implementations.OPTIONS),
    *(f"{name} steps by a closure" for name in implementations.OPTIONS),
]
LBFGS = "LBFGS finds the minimum"


class Walks(seeded_parameters.SeededParameters):
    """The walks, each against the end of its documented formula."""

    def cases(self) -> dict[str, promise_cases.Case]:
        """Return each case by its name."""
        by_name: dict[str, promise_cases.Case] = {OTHERS[0]: self.groups, LBFGS: self.lbfgs}
        for name, options in implementations.OPTIONS.items():
            for label, chosen in {"defaults": {}, **options}.items():
                kinds = implementations.of(name)
                by_name |= {f"{name}, {label}, {kind}": partial(self.walk, name, chosen, kind) for kind in kinds}
            for kind in implementations.of(name, implementations.NARROW):
                by_name[f"{name} in float32, {kind}"] = partial(self.walk, name, {}, kind, "float32")
            by_name[f"{name} resumed from its state"] = partial(self.resumed, name)
            by_name[f"{name} steps by a closure"] = partial(self.closure, name)
        return by_name

    def make(self, name: str, parameters: Any, options: dict[str, Any], kind: str = "as it comes") -> Any:
        """Return torch's optimizer; Absent where this one is not made in that way here."""
        return implementations.optimizer(self.torch, self.device, name, parameters, options, kind)

    def walk(self, name: str, options: dict[str, Any], kind: str, dtype: str = "float64") -> float:
        """Walk all gradients in one implementation."""
        parameters = self.parameters(dtype)
        self.steps(self.make(name, parameters, options, kind), parameters, 0, seeded_parameters.WALK)
        return self.distance(parameters, self.right(name, options, dtype))

    def right(self, name: str, options: dict[str, Any], dtype: str = "float64") -> list[float]:
        """Return where the documented formula ends."""
        if name == "Adafactor":
            return optimizer_formulas.adafactor(seeded_parameters.SHAPES, self.start, self.gradients, options, dtype)
        thin = [self.thin(step) for step in range(seeded_parameters.WALK)] if name == "SparseAdam" else self.gradients
        return optimizer_formulas.trajectory(name, self.start, thin, options)

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

    def resumed(self, name: str) -> float:
        """Walk half, save the state, load it into a new optimizer made with other options, walk on."""
        options = next(iter(implementations.OPTIONS[name].values()))
        parameters = self.parameters()
        before = self.make(name, parameters, options)
        self.steps(before, parameters, 0, seeded_parameters.WALK // 2)
        file = io.BytesIO()
        self.torch.save(before.state_dict(), file)
        file.seek(0)
        after = self.make(name, parameters, {})
        # The safe loader of 1.13 does not read Python floats; the file is this function's own.
        safe = not self.torch.__version__.startswith("1.")
        after.load_state_dict(self.torch.load(file, weights_only=safe))
        self.steps(after, parameters, seeded_parameters.WALK // 2, seeded_parameters.WALK)
        return self.distance(parameters, self.right(name, options))

    def closure(self, name: str) -> float | str:
        """Step by a closure: it is called with gradients enabled, and its loss is returned."""
        parameters = self.parameters()
        optimizer = self.make(name, parameters, {})
        enabled = []
        for number in range(seeded_parameters.WALK):

            def closure(number: int = number) -> float:
                enabled.append(self.torch.is_grad_enabled())
                self.give(optimizer, parameters, number)
                return float(number)

            if optimizer.step(closure) != float(number):
                return "step does not return the closure's loss"
        if enabled != [True] * len(self.gradients):
            return f"the closure was called {len(enabled)} times in {len(self.gradients)} steps, or without gradients"
        return self.distance(parameters, self.right(name, {}))

    def groups(self) -> float:
        """Give the last tensor options of its own."""
        parameters, own = self.parameters(), {"lr": 0.1, "weight_decay": 0.4}
        groups = [{"params": parameters[:-1]}, {"params": parameters[-1:], **own}]
        self.steps(self.torch.optim.AdamW(groups, lr=0.01, weight_decay=0.0), parameters, 0, seeded_parameters.WALK)
        cut = sum(seeded_parameters.SIZES[:-1])
        shares = ((slice(0, cut), {"lr": 0.01, "weight_decay": 0.0}), (slice(cut, None), own))
        right = [
            end
            for share, options in shares
            for end in optimizer_formulas.trajectory(
                "AdamW", self.start[share], [g[share] for g in self.gradients], options
            )
        ]
        return self.distance(parameters, right)

    def lbfgs(self) -> float:
        """Minimise half of sum c (x - m)^2 from its analytic gradient: the minimum is m."""
        curves = [1 + abs(value) for value in self.gradients[0]]
        parameter = self.torch.nn.Parameter(self.row(self.start))
        optimizer = self.torch.optim.LBFGS([parameter], lr=1.0, max_iter=60, tolerance_grad=1e-12, tolerance_change=0)

        def closure() -> float:
            now = plain_math.numbers(parameter)
            gaps = [x - wish for x, wish in zip(now, self.gradients[1])]
            parameter.grad = self.row([c * gap for c, gap in zip(curves, gaps)])
            return sum(c * gap * gap for c, gap in zip(curves, gaps)) / 2

        optimizer.step(closure)
        return plain_math.off(plain_math.numbers(parameter), self.gradients[1])
