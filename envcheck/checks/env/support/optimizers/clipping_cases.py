"""Gradient clipping: by each norm, in each implementation, by value, and the refusal of an infinite norm."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from envcheck.checks.support import promise_cases
from envcheck.checks.training import plain_math

NORMS = {"1": 1.0, "2": 2.0, "3": 3.0, "largest": math.inf}
# As it comes, one tensor after the other, and all at once.
KINDS = (None, False, True)
NAMES = [
    *[f"gradients clipped by norm {norm}" for norm in NORMS],
    "gradients clipped by value",
    "a norm that is infinite is refused",
]
_TOLERANCE = 1e-7
# What clip_grad_norm_ adds to the norm before it divides (its documentation's note on numerical stability).
_ADDED = 1e-6


class Clipping(NamedTuple):
    """torch, gradients as one flat list, and what makes parameters that have given gradients."""

    torch: Any
    gradient: list[float]
    given: Callable[[list[float]], list[Any]]

    def cases(self) -> dict[str, promise_cases.Case]:
        """Return every case by its name."""
        norms: list[promise_cases.Case] = [partial(self.by_norm, kind) for kind in NORMS.values()]
        return dict(zip(NAMES, (*norms, self.by_value, self.infinite)))

    def by_norm(self, kind: float) -> float | str:
        """Clip by a norm that is exceeded, then by one that is not, in each implementation."""
        given = self.gradient
        norm = max(map(abs, given)) if math.isinf(kind) else sum(abs(x) ** kind for x in given) ** (1 / kind)
        off = 0.0
        for options in self.implementations():
            for largest in (norm / 3, norm * 3):
                parameters = self.given(given)
                returned = float(self.torch.nn.utils.clip_grad_norm_(parameters, largest, norm_type=kind, **options))
                if not abs(returned - norm) <= norm * _TOLERANCE:
                    return f"the norm is said to be {returned}, and is {norm} ({options})"
                share = min(1.0, largest / (norm + _ADDED))
                off = max(off, self.in_two(kind, largest, share, options))
                actual = [x for p in parameters for x in plain_math.numbers(p.grad)]
                off = max(off, plain_math.off(actual, [x * share for x in given]))
        return off

    def in_two(self, kind: float, largest: float, share: float, options: dict[str, Any]) -> float:
        """Clip by a norm that was taken before, where this torch has a function for each (2.6)."""
        tools = self.torch.nn.utils
        if not hasattr(tools, "get_total_norm"):
            return 0.0
        parameters = self.given(self.gradient)
        total = tools.get_total_norm([p.grad for p in parameters], norm_type=kind, **options)
        tools.clip_grads_with_norm_(parameters, largest, total, **options)
        actual = [x for p in parameters for x in plain_math.numbers(p.grad)]
        return plain_math.off(actual, [x * share for x in self.gradient])

    def implementations(self) -> list[dict[str, Any]]:
        """Return the options of each implementation that this torch offers."""
        taken = inspect.signature(self.torch.nn.utils.clip_grad_norm_).parameters
        return [{"foreach": kind} for kind in KINDS] if "foreach" in taken else [{}]

    def by_value(self) -> float:
        """Clip each gradient to half of what the largest may be."""
        parameters = self.given(self.gradient)
        self.torch.nn.utils.clip_grad_value_(parameters, 1.0)
        actual = [x for p in parameters for x in plain_math.numbers(p.grad)]
        return plain_math.off(actual, [min(1.0, max(-1.0, x)) for x in self.gradient])

    def infinite(self) -> str | None:
        """Clip with an infinite or undefined gradient: an error where one was requested, and nothing is changed."""
        for bad in (math.inf, -math.inf, math.nan):
            parameters = self.given([*self.gradient[:-1], bad])
            try:
                self.torch.nn.utils.clip_grad_norm_(parameters, 1.0, error_if_nonfinite=True)
            except RuntimeError as error:
                if "non-finite" not in str(error):
                    raise
            else:
                return f"a gradient of {bad} is clipped, and error_if_nonfinite raises nothing"
        return None
