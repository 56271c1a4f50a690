"""What a GradScaler owes: when it grows, when it shrinks, what it steps and what it skips, in exact powers of two.

Source: pytorch.org/docs/stable/amp.html, "Gradient Scaling", and torch.amp.GradScaler's own page.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from envcheck.checks.env.support.training import plain_math, promise_cases

START, INTERVAL = 1024.0, 3
_GRADIENT = [0.5, -0.25, 2.0]
_RATE = 0.25
NAMES = (
    "scales a loss",
    "grows after clean steps",
    "grows by its factor",
    "shrinks on inf",
    "shrinks on nan",
    "shrinks by its factor",
    "skips a step for one inf of the last parameter",
    "skips a late overflow",
    "counts afresh after an overflow",
    "unscales once",
    "skips one optimizer of two",
    "goes on from its state",
    "changes nothing when disabled",
)


class ScalerTrials:
    """The cases of a scaler on one device."""

    def __init__(self, torch: Any, device: Any) -> None:
        self.torch, self.device = torch, device

    def cases(self) -> dict[str, promise_cases.Case]:
        """Return every case by its name."""
        tries: tuple[promise_cases.Case, ...] = (self.scaled, partial(self.grows, 2.0), partial(self.grows, 4.0))
        tries += (partial(self.shrinks, math.inf, 0.5), partial(self.shrinks, math.nan, 0.5))
        tries += (partial(self.shrinks, math.inf, 0.25), self.one_inf, self.late, self.counts, self.unscales)
        return dict(zip(NAMES, (*tries, self.two, self.resumed, self.disabled)))

    def scaler(self, **options: Any) -> Any:
        """Return a scaler; Absent where this torch has none for this device."""
        chosen = {"init_scale": START, "growth_interval": INTERVAL, **options}
        # torch.amp.GradScaler, which takes a device, came with 2.3; the older one is for CUDA alone.
        if hasattr(self.torch.amp, "GradScaler"):
            return self.torch.amp.GradScaler(self.device.type, **chosen)
        if self.device.type != "cuda":
            message = (
                f"the GradScaler of torch {self.torch.__version__} is for CUDA alone (2.3 has torch.amp.GradScaler)"
            )
            raise promise_cases.AbsentFeature(message)
        return self.torch.cuda.amp.GradScaler(**chosen)

    def parameter(self) -> Any:
        """Return a parameter of three numbers, all 1."""
        return self.torch.nn.Parameter(self.torch.tensor([1.0] * len(_GRADIENT), device=self.device))

    def step(self, scaler: Any, parameters: list[Any], *, spoil: float | None = None) -> list[float]:
        """Take one step of SGD on the scaled gradient; return the last parameter. `spoil` is put into its gradient."""
        optimizer = self.torch.optim.SGD(parameters, lr=_RATE)
        for parameter in parameters:
            self.give(scaler, parameter)
        if spoil is not None:
            parameters[-1].grad[-1] = spoil
        scaler.step(optimizer)
        scaler.update()
        return plain_math.numbers(parameters[-1])

    def give(self, scaler: Any, parameter: Any) -> None:
        """Give a parameter the gradient, scaled."""
        parameter.grad = None
        weights = self.torch.tensor(_GRADIENT, device=self.device)
        scaler.scale((parameter * weights).sum()).backward()

    def scaled(self) -> str | None:
        """Scale a loss, alone and in a list: it is multiplied by the scale, to the bit."""
        loss = self.torch.tensor(1.5, device=self.device)
        scaler = self.scaler()
        actual = [
            *plain_math.numbers(scaler.scale(loss)),
            *(x for y in scaler.scale([loss, loss]) for x in plain_math.numbers(y)),
        ]
        return _unlike("a loss of 1.5 scaled by 1024 thrice", actual, [1.5 * START] * 3)

    def grows(self, factor: float) -> str | None:
        """Step cleanly: after each INTERVAL the scale is multiplied by its factor, and not before."""
        scaler, parameter = self.scaler(growth_factor=factor), self.parameter()
        scales, ends = [], []
        for _ in range(2 * INTERVAL + 1):
            ends.append(self.step(scaler, [parameter]))
            scales.append(float(scaler.get_scale()))
        right = [START * factor ** ((done + 1) // INTERVAL) for done in range(2 * INTERVAL + 1)]
        steps = [[1.0 - _RATE * (done + 1) * g for g in _GRADIENT] for done in range(2 * INTERVAL + 1)]
        return _unlike("the scale of clean steps", scales, right) or _unlike(
            "weights", plain_math.flat(ends), plain_math.flat(steps)
        )

    def shrinks(self, spoil: float, factor: float) -> str | None:
        """Overflow once: nothing is stepped, and the scale falls by its factor."""
        scaler, parameter = self.scaler(backoff_factor=factor), self.parameter()
        after = self.step(scaler, [parameter], spoil=spoil)
        return _unlike("weights after an overflow", after, [1.0] * len(_GRADIENT)) or _unlike(
            "the scale after an overflow", [float(scaler.get_scale())], [START * factor]
        )

    def one_inf(self) -> str | None:
        """Put one infinity into the last of many parameters: none of them is stepped."""
        scaler, parameters = self.scaler(), [self.parameter() for _ in range(5)]
        self.step(scaler, parameters, spoil=-math.inf)
        ends = [x for parameter in parameters for x in plain_math.numbers(parameter)]
        return _unlike("weights after an overflow", ends, [1.0] * len(ends))

    def late(self) -> str | None:
        """Overflow after many steps of one optimizer: that one is skipped, and the others are not."""
        scaler, parameter, clean = self.scaler(growth_interval=100), self.parameter(), 12
        optimizer = self.torch.optim.SGD([parameter], lr=_RATE)
        for number in range(clean + 2):
            self.give(scaler, parameter)
            if number == clean:
                parameter.grad[-1] = math.inf
            scaler.step(optimizer)
            scaler.update()
        right = [1.0 - _RATE * (clean + 1) * g for g in _GRADIENT]
        return _unlike("weights around a late overflow", plain_math.numbers(parameter), right)

    def counts(self) -> str | None:
        """Overflow after clean steps: they are counted from the start again."""
        scaler, parameter = self.scaler(), self.parameter()
        scales = []
        for number in range(2 + 1 + INTERVAL):
            self.step(scaler, [parameter], spoil=math.inf if number == INTERVAL - 1 else None)
            scales.append(float(scaler.get_scale()))
        return _unlike("scales around an overflow", scales, [START, START, *[START / 2] * INTERVAL, START])

    def unscales(self) -> str | None:
        """Unscale: the gradient itself is there, the step uses it as it is then, and a second unscale_ is refused."""
        scaler, parameter = self.scaler(), self.parameter()
        optimizer = self.torch.optim.SGD([parameter], lr=_RATE)
        self.give(scaler, parameter)
        scaler.unscale_(optimizer)
        wrong = _unlike("an unscaled gradient", plain_math.numbers(parameter.grad), _GRADIENT)
        try:
            scaler.unscale_(optimizer)
        except RuntimeError as error:
            wrong = wrong or (None if "already been called" in str(error) else promise_cases.quoted(error))
        else:
            wrong = wrong or "a second unscale_ is not refused"
        parameter.grad.mul_(0.5)
        scaler.step(optimizer)
        return wrong or _unlike("weights", plain_math.numbers(parameter), [1 - _RATE * g / 2 for g in _GRADIENT])

    def two(self) -> str | None:
        """Overflow in one of two optimizers: that one is skipped, the other steps, and the scale falls."""
        scaler, parameters = self.scaler(), [self.parameter(), self.parameter()]
        optimizers = [self.torch.optim.SGD([parameter], lr=_RATE) for parameter in parameters]
        for parameter in parameters:
            self.give(scaler, parameter)
        parameters[1].grad[0] = math.inf
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        ends = [x for parameter in parameters for x in plain_math.numbers(parameter)]
        right = [*(1 - _RATE * g for g in _GRADIENT), *[1.0] * len(_GRADIENT)]
        return _unlike("weights of two optimizers", ends, right) or _unlike(
            "the scale", [scaler.get_scale()], [START / 2]
        )

    def resumed(self) -> str | None:
        """Load another scaler's state: it goes on with its scale and its count of clean steps."""
        before, parameter = self.scaler(), self.parameter()
        for _ in range(2 * INTERVAL - 1):
            self.step(before, [parameter])
        after = self.scaler(init_scale=2.0, growth_interval=100)
        after.load_state_dict(before.state_dict())
        scales = [float(after.get_scale())]
        self.step(after, [parameter])
        scales.append(float(after.get_scale()))
        return _unlike("the scale before and after one more step", scales, [START * 2, START * 4])

    def disabled(self) -> str | None:
        """Disable it: steps are as if it were not there."""
        scaler, parameter = self.scaler(enabled=False), self.parameter()
        after = self.step(scaler, [parameter])
        return _unlike("weights", [*after, float(scaler.get_scale())], [*(1 - _RATE * g for g in _GRADIENT), 1.0])


def _unlike(subject: str, actual: list[float], right: list[float]) -> str | None:
    return None if actual == right else f"{subject}: {actual}, not {right}"
