"""What of an outcome is worth drawing: curves by size, samples over time, ranks and pairs of GPUs compared."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from envcheck.reports import phrases
from envcheck.reports.html.svg import ROUNDS, SECONDS, SIZES, Axis, Drawing, HeatCell, PlotLine, chart, heat_map, legend
from envcheck.runner.schema import OutcomeRow

_MOST: Final = 64
# What lags this much behind the others gets the strongest cell.
_DARKEST: Final = 0.3
_RATES: Final = ("busbw", "algbw")
# What a sample under load tells, with its unit (checks/env/support/hardware/sampler.py); `tflops` stands beside them.
_SAMPLED: Final = {"clock": "MHz", "power": "W", "temperature": "°C", "utilization": "%"}


class Figure(NamedTuple):
    """A drawing with its caption, and (class, name) of each curve where there are several."""

    caption: str
    drawing: Drawing
    legend: Sequence[tuple[str, str]] = ()


def figures(outcome: OutcomeRow) -> Iterator[Figure]:
    """Yield the drawings of a check's evidence; nothing of what has not the shape of any."""
    yield from _curves(outcome)
    yield from _latencies(outcome)
    yield from _lateness_map(outcome)
    yield from _values_map(outcome)
    for name, square in _squares(outcome.details, ""):
        yield from _matrix(outcome, name, square)
    yield from _over_time(outcome)
    yield from _soak(outcome)


def _curves(outcome: OutcomeRow) -> Iterator[Figure]:
    drawn = list(_lines(outcome.details, _RATES[0]))
    drawn = drawn or list(_lines(outcome.details, _RATES[1]))
    if drawn:
        limit = outcome.limit if outcome.limit and outcome.unit == outcome.limit.unit == "GB/s" else None
        bound = phrases.number(limit.value) if limit else None
        svg = chart(drawn, SIZES, "GB/s", bound, f"{outcome.id}: bandwidth by message size")
        yield Figure(f"{outcome.id}: bus bandwidth by message size", svg, legend(drawn))


def _lines(details: Mapping[str, Any], rate: str) -> Iterator[PlotLine]:
    """Yield every list of {bytes, rate}, at any depth of names; a list that is the only one needs no name."""
    for name, value in details.items():
        if isinstance(value, list):
            points = _points(value, "bytes", rate)
            if len(points) > 1:
                yield PlotLine(rate if name == "curve" else name, points)
        elif isinstance(value, dict):
            yield from _lines(value, rate)


def _points(entries: Iterable[Any], x: str, y: str) -> list[tuple[float, float]]:
    pairs = ((phrases.number(e.get(x)), phrases.number(e.get(y))) for e in entries if isinstance(e, dict))
    points = {at: value for at, value in pairs if at is not None and value is not None and value > 0}
    return sorted((at, value) for at, value in points.items() if x != "bytes" or at >= 1)


def _latencies(outcome: OutcomeRow) -> Iterator[Figure]:
    latency = outcome.details.get("latency")
    if isinstance(latency, dict):
        lists = {name: entries for name, entries in latency.items() if isinstance(entries, list)}
        pairs = ((name, {x: y * 1e6 for x, y in _points(v, "bytes", "p50")}) for name, v in lists.items())
        rows = {name: points for name, points in pairs if points}
        sizes = sorted({size for points in rows.values() for size in points})
        if rows:
            cells = {name: [_cell(points.get(size)) for size in sizes] for name, points in rows.items()}
            svg = heat_map([phrases.size(size) for size in sizes], cells, f"{outcome.id}: latency")
            yield Figure(f"{outcome.id}: median latency of small messages, µs, on the slowest rank", svg)


def _cell(value: float | None) -> HeatCell:
    return HeatCell(0.0, "?" if value is None else f"{value:.4g}")


def _lateness_map(outcome: OutcomeRow) -> Iterator[Figure]:
    """Yield how much slower than the middle one each rank was: by size, or of several collectives at the largest."""
    rows = {_owner(entry): _seconds(entry) for entry in _ranks(outcome)}
    rows = {owner: times for owner, times in rows.items() if times}
    columns = sorted({column for times in rows.values() for column in times})
    if len(rows) > 1:
        cells = {owner: _late([t.get(c) for c in columns], _middles(rows, columns)) for owner, t in rows.items()}
        titles = [title for _, _, title in columns]
        svg = heat_map(titles, cells, f"{outcome.id}: seconds of each rank over the middle rank's")
        yield Figure(f"{outcome.id}: time of each rank against the middle one", svg)


def _seconds(entry: Mapping[str, Any]) -> dict[tuple[int, float, str], float]:
    """Return a rank's seconds: at each size of its one curve, at the largest of each of several, or of its one work."""
    curve, several, alone = entry.get("curve"), entry.get("curves"), phrases.number(entry.get("seconds"))
    if isinstance(curve, list):
        return {(0, size, phrases.size(size)): took for size, took in _points(curve, "bytes", "seconds")}
    if isinstance(several, dict):
        lists = [(name, _points(v, "bytes", "seconds")) for name, v in several.items() if isinstance(v, list)]
        return {(number, 0.0, name): points[-1][1] for number, (name, points) in enumerate(lists) if points}
    return {(0, 0.0, "seconds"): alone} if alone and alone > 0 else {}


def _middles(rows: Mapping[str, Mapping[Any, float]], columns: Iterable[Any]) -> list[float]:
    columns_sorted = [sorted(times[column] for times in rows.values() if column in times) for column in columns]
    return [values[len(values) // 2] for values in columns_sorted]


def _late(times: Sequence[float | None], middles: Sequence[float]) -> list[HeatCell]:
    return [_lateness(took, middle) for took, middle in zip(times, middles, strict=True)]


def _lateness(seconds: float | None, middle: float) -> HeatCell:
    if seconds is None:
        return HeatCell(0.0, "?")
    late = seconds / middle - 1
    return HeatCell(min(max(late / _DARKEST, 0), 1), f"{late:+.0%}" if round(late, 2) else "0%")


def _values_map(outcome: OutcomeRow) -> Iterator[Figure]:
    """Yield what each rank reached of each of its `values`, the furthest below the best the strongest."""
    held = {_owner(entry): entry.get("values") for entry in _ranks(outcome)}
    reached = {
        owner: {str(name): phrases.number(value) for name, value in values.items()}
        for owner, values in held.items()
        if isinstance(values, dict)
    }
    names = list(dict.fromkeys(name for values in reached.values() for name in values))
    best = {name: max((values.get(name) or 0.0 for values in reached.values()), default=0.0) for name in names}
    if reached and names and min(best.values()) > 0 and outcome.unit.endswith("/s"):
        rows = {owner: [_behind(values.get(name), best[name]) for name in names] for owner, values in reached.items()}
        alone = "" if len(reached) == 1 else " (the stronger, the further behind the best)"
        svg = heat_map(names, rows, f"{outcome.id}: {outcome.unit} of each rank")
        yield Figure(f"{outcome.id}: {outcome.unit} of each rank{alone}", svg)


def _behind(value: float | None, best: float) -> HeatCell:
    return (
        HeatCell(0.0, "?") if value is None else HeatCell(min(max((1 - value / best) / _DARKEST, 0), 1), f"{value:.4g}")
    )


def _squares(details: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, list[list[float | None]]]]:
    """Yield every square of numbers, at any depth of names."""
    for name, value in details.items():
        title = f"{prefix} {name}".strip()
        if isinstance(value, dict):
            yield from _squares(value, title)
        elif isinstance(value, list) and 1 < len(value) <= _MOST:
            rows = [row for row in value if isinstance(row, list) and len(row) == len(value)]
            if len(rows) == len(value):
                yield title, [[phrases.number(number) for number in row] for row in rows]


def _matrix(outcome: OutcomeRow, name: str, square: list[list[float | None]]) -> Iterator[Figure]:
    """Yield a square as from GPU to GPU, the furthest from the best the strongest: of a time the least is best."""
    off = [value for i, row in enumerate(square) for j, value in enumerate(row) if i != j and value is not None]
    good = [value for value in off if value > 0]
    if not good:
        return
    slow = outcome.unit in ("s", "ms", "us", "µs")
    best = min(good) if slow else max(good)
    cells = {
        f"from {i}": [_weakness(value, best, own=i == j, slow=slow) for j, value in enumerate(row)]
        for i, row in enumerate(square)
    }
    unit = f", {outcome.unit}" if outcome.unit else ""
    caption = f"{outcome.id}: {name}{unit} (the stronger, the further {'above' if slow else 'below'} the best)"
    yield Figure(caption, heat_map([f"to {j}" for j in range(len(square))], cells, f"{outcome.id} {name}"))


def _weakness(value: float | None, best: float, *, own: bool, slow: bool) -> HeatCell:
    if own or value is None:
        return HeatCell(0.0, "-" if own else "?")
    lag = 1 - (best / value if slow and value > 0 else value / best)
    return HeatCell(min(max(lag, 0), 1), f"{value:.3g}")


def _over_time(outcome: OutcomeRow) -> Iterator[Figure]:
    """Yield the speed, clock, power and heat of each rank while it worked, those that a finding names over the rest."""
    yield from _timed(
        outcome,
        {_owner(e): _points(_list(e.get("points")), "at", "tflops") for e in _ranks(outcome)},
        "speed",
        "TFLOP/s",
    )
    for quantity, unit in _SAMPLED.items():
        loads = {_owner(entry): entry.get("load") for entry in _ranks(outcome)}
        samples = {owner: _list(load.get("samples")) for owner, load in loads.items() if isinstance(load, dict)}
        yield from _timed(outcome, {o: _points(s, "at", quantity) for o, s in samples.items()}, quantity, unit)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _timed(
    outcome: OutcomeRow, series: Mapping[str, list[tuple[float, float]]], name: str, unit: str
) -> Iterator[Figure]:
    blamed = outcome.details.get("rank")
    drawn = [
        PlotLine(owner, points, hot=owner.split(",")[0] == f"rank {blamed}")
        for owner, points in series.items()
        if len(points) > 1
    ]
    if drawn:
        yield _drawn(f"{outcome.id}: {name} over time", drawn, SECONDS, unit)


def _soak(outcome: OutcomeRow) -> Iterator[Figure]:
    values = outcome.spread.values if outcome.spread else []
    if len(values) > 1 and len(set(values)) > 1 and min(values) >= 0:
        points = [(float(number), value) for number, value in enumerate(values, start=1)]
        yield _drawn(f"{outcome.id}: by round", [PlotLine(outcome.id, points)], ROUNDS, outcome.unit)


def _drawn(caption: str, lines: list[PlotLine], axis: Axis, unit: str) -> Figure:
    return Figure(caption, chart(lines, axis, unit, None, caption), legend(lines))


def _ranks(outcome: OutcomeRow) -> list[dict[str, Any]]:
    return [e for e in itertools.islice(outcome.ranks, _MOST) if isinstance(e, dict)]


def _owner(entry: Mapping[str, Any]) -> str:
    """Return whose measurement it is: the rank, with the beginning of its GPU's UUID."""
    device = str(entry.get("device") or "")
    short = device[:12] if device.startswith(("GPU-", "MIG-")) else ""
    return f"rank {entry.get('rank')}{f', {short}' if short else ''}"
