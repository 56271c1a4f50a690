"""The error of a model's gradients is that of the worst one, and NaN wherever one is."""

from __future__ import annotations

import math
from typing import Any

import pytest

from envcheck.checks.env import _replicas


class One(float):
    """As much of a tensor of one element as an error is computed from."""

    def __sub__(self, other: float) -> One:
        return One(float(self) - other)

    def __rmul__(self, other: float) -> One:
        return One(float(self) * other)

    def __radd__(self, other: float) -> One:
        return One(float(self) + other)

    def __truediv__(self, other: float) -> One:
        return One(float(self) / other)

    def abs(self) -> One:
        """Return its size."""
        return One(abs(float(self)))

    def max(self) -> One:
        """Return it."""
        return self


def off(*gradients: float) -> float:
    references: list[Any] = [One(1.0)] * len(gradients)
    return _replicas.off(map(One, gradients), references)


@pytest.mark.parametrize("order", [(1.0, math.nan, 1.0), (math.nan, 1.0, 1.0), (1.0, 1.0, math.nan)])
def test_a_nan_is_not_lost_among_others(order: tuple[float, ...]) -> None:
    assert math.isnan(off(*order))


def test_the_worst_of_them_counts_in_tolerances() -> None:
    assert off(1.0, 1.0) == 0.0
    assert off(1.0, 1.0 + 2 * (_replicas.ATOL + _replicas.RTOL), 1.0) == pytest.approx(2.0, rel=1e-4)


def test_the_limit_says_how_far_off_a_wrong_one_is() -> None:
    limit = _replicas.tolerance("a wrong one is far off")
    assert (limit.value, limit.kind) == (1.0, "at most")
    assert limit.source.endswith("(ours; a wrong one is far off)")
