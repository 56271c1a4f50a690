"""The numbers of a report that say how fast something was: by check, GPU and quantity, with the points of a curve."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from envcheck.reports import phrases
from envcheck.runner.schema import OutcomeRow

# The last word of a measurement's name, and whether more is better.
_HIGHER: Final = (
    "busbw",
    "algbw",
    "bandwidth",
    "tflops",
    "gbps",
    "rate",
    "throughput",
    "gb_s",
    "tflop_s",
    "per_second",
)
_LOWER: Final = ("seconds", "latency", "ms", "us", "p50")
# Medians of microseconds move with the weather of a machine; ours: a quarter more is reported.
_COARSE: Final = {"p50": 0.25}
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
    """Return every speed that an outcome holds; nothing of one that came to no value."""
    series: dict[Key, Series] = {}
    value, higher = _value(outcome), _direction(outcome)
    if value is not None and value > 0 and higher is not None:
        series[Key(outcome.id, "", "value")] = Series(higher, {"": value}, outcome.unit, _noise(outcome))
    for number, entry in enumerate(outcome.ranks):
        if isinstance(entry, dict):
            series.update(_of_rank(outcome, entry, number, higher=higher))
            if higher is not None:
                series.update(_pairs(outcome, entry, higher=higher))
    return series


def _value(outcome: OutcomeRow) -> float | None:
    """Return the middle one of a soak's values, else what was judged."""
    median = outcome.spread.median if outcome.spread else None
    return median if median is not None else phrases.number(outcome.value)


def _of_rank(outcome: OutcomeRow, entry: dict[str, Any], number: int, *, higher: bool | None) -> dict[Key, Series]:
    """Return the speeds of one rank; of what it measured again and again at one point the median."""
    held: dict[tuple[str, str], list[float]] = {}
    for quantity, point, measured in _leaves(entry, "", ""):
        if measured > 0:
            held.setdefault((quantity, point), []).append(measured)
    series: dict[Key, Series] = {}
    for (quantity, point), values in held.items():
        # `values` are in the unit of the check's own value (checks/env/support/hardware/gpu_speed.py).
        better, unit = (higher, outcome.unit) if quantity.startswith("values.") else (_named(quantity), "")
        if better is not None:
            noise = _COARSE.get(quantity.rpartition(".")[2], 0.0)
            key = Key(outcome.id, _owner(entry, number), quantity)
            series.setdefault(key, Series(better, {}, unit, noise)).points[point] = statistics.median(values)
    return series


def _pairs(outcome: OutcomeRow, entry: dict[str, Any], *, higher: bool) -> dict[Key, Series]:
    """Return a matrix from GPU to GPU (checks/env/peer_bandwidth.py) as a speed of each pair, by UUIDs."""
    gpus, matrix = entry.get("gpus"), entry.get("matrix")
    if not isinstance(gpus, list) or not isinstance(matrix, list) or len(gpus) != len(matrix):
        return {}
    cells = [(i, j, value) for i, row in enumerate(matrix) if isinstance(row, list) for j, value in enumerate(row)]
    rates = [(i, j, rate) for i, j, value in cells if j < len(gpus) and (rate := phrases.number(value)) and rate > 0]
    return {
        Key(outcome.id, f"{gpus[i]} -> {gpus[j]}", "rate"): Series(higher, {"": r}, outcome.unit) for i, j, r in rates
    }


def _direction(outcome: OutcomeRow) -> bool | None:
    if outcome.unit.endswith("/s"):
        return True
    return False if outcome.unit in _SLOW_UNITS else None


def _named(quantity: str) -> bool | None:
    last = quantity.rpartition(".")[2].lower()
    if last.endswith(_HIGHER):
        return True
    return False if last in _LOWER or last.endswith(tuple(f"_{word}" for word in _LOWER)) else None


def _noise(outcome: OutcomeRow) -> float:
    """Return (largest - smallest) / middle of what the same run measured more than once."""
    repeats = outcome.spread.values if outcome.spread else [phrases.number(a.value) for a in outcome.attempts]
    values = sorted(value for value in repeats if value is not None and value > 0)
    return (values[-1] - values[0]) / values[len(values) // 2] if len(values) > 1 else 0.0


def _owner(entry: dict[str, Any], number: int) -> str:
    """Return the GPU's UUID, by which it is known in any other report; on a CPU the rank."""
    device = str(entry.get("device", ""))
    return device if entry.get("is_cuda") else f"rank {entry.get('rank', number)}"


def _leaves(value: Any, name: str, point: str) -> Iterator[tuple[str, str, float]]:
    """Yield the numbers in a measurement: their name, the point of the curve they stand at, and the value."""
    if isinstance(value, dict):
        size = phrases.number(value.get("bytes"))
        at = phrases.size(size) if size is not None else point
        for key, inner in value.items():
            yield from _leaves(inner, f"{name}.{key}" if name else str(key), at)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner, name, point)
    elif (number := phrases.number(value)) is not None:
        yield name, point, number
