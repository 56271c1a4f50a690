"""Read the measurements of an outcome that reports draw and compare, as types.

Checks write them into these fields (docs/adding-a-check.md); a value of another form is left out:

- `details`: `curve` or `curves` (bus bandwidth by message size), `matrix` (GPU to GPU).
- an entry of `ranks`: `curve`, `curves` and `latency` as this rank saw them, `values` (in the outcome's unit),
  `points` (TFLOP/s over time), `load.samples` (the GPU over time),
  `gpus` and `matrix` (the outcome's unit, by the GPUs' UUIDs).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from envcheck.reports import phrases
from envcheck.runner.schema import OutcomeRow

_MOST: Final = 64
# What a sample of the GPU under load holds, with its unit (checks/support/sampler.py).
SAMPLED: Final = {"clock": "MHz", "power": "W", "temperature": "°C", "utilization": "%"}


class CurvePoint(NamedTuple):
    """A point of a curve: `at` in bytes or in seconds since the start; `value` is above 0."""

    at: float
    value: float


# Points by rising `at`, each `at` once.
Points = list[CurvePoint]


@dataclasses.dataclass(frozen=True)
class BandwidthCurve:
    """A collective's bandwidth in GB/s by message size in bytes; `collective` is "" for a check of one collective."""

    collective: str
    rate: str
    points: Points


@dataclasses.dataclass(frozen=True)
class PairMatrix:
    """What each GPU (row) reaches to each other (column), None where nothing was measured. `gpus`: UUIDs, or empty."""

    gpus: list[str]
    rows: list[list[float | None]]


@dataclasses.dataclass(frozen=True)
class RankMeasurements:
    """The measurements of one rank.

    `owner` is the rank, with the beginning of its GPU's UUID; `gpu` is the whole UUID, or the rank on a CPU. `seconds`
    and `latencies` (median seconds) are by message size for each collective.
    `speed` is TFLOP/s over time, `samples` each quantity of SAMPLED over time.
    """

    owner: str
    gpu: str
    seconds: dict[str, Points]
    latencies: dict[str, Points]
    values: dict[str, float | None]
    speed: Points
    samples: dict[str, Points]
    pairs: PairMatrix | None


@dataclasses.dataclass(frozen=True)
class Measurements:
    """The measurements of an outcome."""

    curves: list[BandwidthCurve]
    pairs: PairMatrix | None
    ranks: list[RankMeasurements]


def measurements(outcome: OutcomeRow) -> Measurements:
    """Return the measurements of an outcome, of at most 64 ranks."""
    details = outcome.details
    ranks = [entry for entry in itertools.islice(outcome.ranks, _MOST) if isinstance(entry, dict)]
    return Measurements(
        curves=_bandwidths(details, "busbw") or _bandwidths(details, "algbw"),
        pairs=_pairs(details),
        ranks=[_of_rank(entry, number) for number, entry in enumerate(ranks)],
    )


def _of_rank(entry: Mapping[str, Any], number: int) -> RankMeasurements:
    device, rank = str(entry.get("device") or ""), f"rank {entry.get('rank', number)}"
    samples = _mapping(entry.get("load")).get("samples")
    return RankMeasurements(
        owner=f"{rank}, {device[:12]}" if device.startswith(("GPU-", "MIG-")) else rank,
        gpu=device if entry.get("is_cuda") else rank,
        seconds=_curves(entry, "seconds"),
        latencies=_by_collective(entry.get("latency"), "p50"),
        values={str(name): phrases.number(value) for name, value in _mapping(entry.get("values")).items()},
        speed=_points(entry.get("points"), "at", "tflops"),
        samples={quantity: _points(samples, "at", quantity) for quantity in SAMPLED},
        pairs=_pairs(entry),
    )


def _bandwidths(details: Mapping[str, Any], rate: str) -> list[BandwidthCurve]:
    return [BandwidthCurve(name, rate, points) for name, points in _curves(details, rate).items()]


def _curves(held: Mapping[str, Any], quantity: str) -> dict[str, Points]:
    """Return a quantity by message size for each collective, "" for that of a check of one collective."""
    one = {"": points} if (points := _points(held.get("curve"), "bytes", quantity)) else {}
    return one | _by_collective(held.get("curves"), quantity)


def _by_collective(value: Any, quantity: str) -> dict[str, Points]:
    curves = {str(name): _points(entries, "bytes", quantity) for name, entries in _mapping(value).items()}
    return {name: points for name, points in curves.items() if points}


def _points(entries: Any, at: str, quantity: str) -> Points:
    rows = entries if isinstance(entries, list) else []
    pairs = ((phrases.number(row.get(at)), phrases.number(row.get(quantity))) for row in rows if isinstance(row, dict))
    values = {x: y for x, y in pairs if x is not None and y is not None and y > 0}
    return sorted(CurvePoint(x, y) for x, y in values.items() if at != "bytes" or x >= 1)


def _pairs(held: Mapping[str, Any]) -> PairMatrix | None:
    rows, gpus = held.get("matrix"), held.get("gpus")
    if not isinstance(rows, list) or not 1 < len(rows) <= _MOST:
        return None
    if any(not isinstance(row, list) or len(row) != len(rows) for row in rows):
        return None
    names = [str(gpu) for gpu in gpus] if isinstance(gpus, list) and len(gpus) == len(rows) else []
    return PairMatrix(names, [[phrases.number(value) for value in row] for row in rows])


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, dict) else {}
