"""The error of a model's gradients is that of the worst one, and infinite wherever one is not a number or not there."""

from __future__ import annotations

import math
from typing import Any

import pytest

from envcheck.checks.support import training
from tests.tables import each


class One(float):
    """As much of a tensor of one element as its numbers are taken from."""

    def detach(self) -> One:
        """Return it."""
        return self

    def cpu(self) -> One:
        """Return it."""
        return self

    def tolist(self) -> float:
        """Return its number."""
        return float(self)


def off(*gradients: Any) -> float:
    return training.in_tolerances(gradients, [[1.0]] * len(gradients))


@each("order", [(1.0, math.nan, 1.0), (math.nan, 1.0, 1.0), (1.0, 1.0, math.nan)])
def test_a_nan_is_not_lost_among_others(order: tuple[float, ...]) -> None:
    assert off(*map(One, order)) == math.inf


def test_a_gradient_that_is_not_there_is_infinitely_far() -> None:
    assert off(One(1.0), None) == math.inf


def test_the_worst_of_them_counts_in_tolerances() -> None:
    assert off(One(1.0), One(1.0)) == 0.0
    assert off(One(1.0), One(1.0 + 2 * training.TOLERANCE), One(1.0)) == pytest.approx(2.0, rel=1e-4)
