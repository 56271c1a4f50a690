"""Values far from those of the same kind of node: by the median absolute deviation (MAD), which outliers do not move.

A value is an outlier where at least 8 nodes have one, it is more than 8 scaled MADs from their median (1.4826 · MAD is
the standard deviation of normal noise), and more than 10 % away: noise of 1 % must not alarm. Where more than half of
the values are equal, MAD is 0 and another value is drift: any other count, and a measurement that is 10 % away.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final, NamedTuple

LEAST: Final = 8
FURTHEST: Final = 8.0
SCALE: Final = 1.4826
FLOOR: Final = 0.1


class Deviation(NamedTuple):
    """A value that is an outlier, by its place in the values; z is signed."""

    place: int
    value: float
    median: float
    z: float


class OutlierResult(NamedTuple):
    """The outliers of some values; where MAD is 0 the value of most of them, and the places of those that drift."""

    outliers: list[Deviation]
    constant: float | None = None
    drifting: list[int] = []  # noqa: RUF012 (a NamedTuple's default is never changed)


def compare(values: Sequence[float], floor: float = 0.0) -> OutlierResult:
    """Return which values are far from the others; `floor` is the least distance in their unit that counts."""
    if len(values) < LEAST:
        return OutlierResult([])
    median = statistics.median(values)
    scale = max(SCALE * statistics.median(abs(value - median) for value in values), floor / FURTHEST)
    if scale == 0:
        return OutlierResult([], median, [place for place, value in enumerate(values) if _drifts(value, median)])
    least = max(FURTHEST * scale, FLOOR * abs(median), floor)
    far = [
        Deviation(place, value, median, (value - median) / scale)
        for place, value in enumerate(values)
        if abs(value - median) > least
    ]
    return OutlierResult(far)


def _drifts(value: float, constant: float) -> bool:
    counts = value.is_integer() and constant.is_integer()
    return value != constant and (counts or abs(value - constant) > FLOOR * abs(constant))
