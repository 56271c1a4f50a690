"""Gradients before and after a step: they add up, and they are forgotten."""

from __future__ import annotations

from functools import partial

from envcheck.checks.env.support.optimizers import seeded_parameters
from envcheck.checks.support import promise_cases
from envcheck.checks.training import plain_math

NAMES = ("accumulated gradients", "zero_grad to none", "zero_grad to zero")


def cases(seeded: seeded_parameters.SeededParameters) -> dict[str, promise_cases.Case]:
    """Return each case by its name."""
    zeroed = (partial(_zeroed, seeded, to_none=to_none) for to_none in (True, False))
    return dict(zip(NAMES, (partial(_accumulated, seeded), *zeroed)))


def _accumulated(seeded: seeded_parameters.SeededParameters) -> float:
    """Go backward three times: gradients add up."""
    parameters = seeded.parameters()
    for gradient in seeded.gradients[:3]:
        sum((p * g).sum() for p, g in zip(parameters, seeded.tensors(gradient))).backward()
    actual = [x for p in parameters for x in plain_math.numbers(p.grad)]
    return plain_math.off(actual, [sum(step) for step in zip(*seeded.gradients[:3])])


def _zeroed(seeded: seeded_parameters.SeededParameters, *, to_none: bool) -> str | None:
    """Forget the gradients."""
    parameters = seeded.with_gradients(seeded.gradients[0])
    seeded.torch.optim.SGD(parameters, lr=0.1).zero_grad(set_to_none=to_none)
    left = [parameter.grad for parameter in parameters]
    if to_none:
        return None if all(grad is None for grad in left) else "gradients are kept"
    zero = all(grad is not None and not any(plain_math.numbers(grad)) for grad in left)
    return None if zero else "gradients are not zero"
