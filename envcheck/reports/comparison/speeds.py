"""The numbers of a report that say how fast something was: by check, GPU and quantity, with the points of a curve."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Final, NamedTuple

from envcheck.reports import phrases
from envcheck.reports.measurements import PairMatrix, Points, RankMeasurements, measurements
from envcheck.runner.schema import OutcomeRow

# Latencies of microseconds differ from run to run on one machine; ours: a quarter more is reported.
_LATENCY_NOISE: Final = 0.25
_HIGHER: Final = True
_LOWER: Final = False
_SLOW_UNITS: Final = ("s", "ms", "us", "µs")


class Key(NamedTuple):
    """Whose speed it is: a check's own (`gpu` empty), or that of one of its GPUs, or rank on a CPU."""

    check: str
    gpu: str
    quantity: str


class Series(NamedTuple):
    """A quantity's points; `higher` says that more is better. `noise` is how far, relatively, it is known to move."""

    higher: bool
    points: dict[str, float]
    unit: str = ""
    noise: float = 0.0


def speeds(outcome: OutcomeRow) -> dict[Key, Series]:
    """Return every speed that an outcome holds; none if it has no value."""
    series: dict[Key, Series] = {}
    value, higher = _value(outcome), _direction(outcome)
    if value is not None and value > 0 and higher is not None:
        series[Key(outcome.id, "", "value")] = Series(higher, {"": value}, outcome.unit, _noise(outcome))
    for rank in measurements(outcome).ranks:
        series.update({Key(outcome.id, rank.gpu, name): one for name, one in _of_rank(rank)})
        if higher is not None:
            values = {name: value for name, value in rank.values.items() if value is not None and value > 0}
            for name, value in values.items():
                series[Key(outcome.id, rank.gpu, f"values.{name}")] = Series(higher, {"": value}, outcome.unit)
            series.update(_pairs(outcome, rank.pairs, higher=higher))
    return series


def _value(outcome: OutcomeRow) -> float | None:
    """Return the median of a repeated run's values, else the value that was judged."""
    median = outcome.spread.median if outcome.spread else None
    return median if median is not None else phrases.number(outcome.value)


def _of_rank(rank: RankMeasurements) -> Iterator[tuple[str, Series]]:
    """Yield the curves of one rank; the speed over time as its median."""
    for collective, points in rank.seconds.items():
        yield f"curves.{collective}.seconds" if collective else "curve.seconds", Series(_LOWER, _by_size(points))
    for collective, points in rank.latencies.items():
        yield f"latency.{collective}.p50", Series(_LOWER, _by_size(points), noise=_LATENCY_NOISE)
    if rank.speed:
        yield "points.tflops", Series(_HIGHER, {"": statistics.median(point.value for point in rank.speed)})


def _by_size(points: Points) -> dict[str, float]:
    return {phrases.size(point.at): point.value for point in points}


def _pairs(outcome: OutcomeRow, pairs: PairMatrix | None, *, higher: bool) -> dict[Key, Series]:
    """Return a matrix from GPU to GPU as a speed of each pair, by UUIDs."""
    if pairs is None or not pairs.gpus:
        return {}
    return {
        Key(outcome.id, f"{source} -> {target}", "rate"): Series(higher, {"": rate}, outcome.unit)
        for source, row in zip(pairs.gpus, pairs.rows, strict=True)
        for target, rate in zip(pairs.gpus, row, strict=True)
        if rate is not None and rate > 0
    }


def _direction(outcome: OutcomeRow) -> bool | None:
    if outcome.unit.endswith("/s"):
        return True
    return False if outcome.unit in _SLOW_UNITS else None


def _noise(outcome: OutcomeRow) -> float:
    """Return (largest - smallest) / middle of what the same run measured more than once."""
    repeats = outcome.spread.values if outcome.spread else [phrases.number(a.value) for a in outcome.attempts]
    values = sorted(value for value in repeats if value is not None and value > 0)
    return (values[-1] - values[0]) / values[len(values) // 2] if len(values) > 1 else 0.0
