"""What of an outcome is worth drawing: curves by size, samples over time, ranks and pairs of GPUs compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from envcheck.reports import phrases
from envcheck.reports.html.svg import ROUNDS, SECONDS, SIZES, Axis, Drawing, HeatCell, PlotLine, chart, heat_map, legend
from envcheck.reports.measurements import SAMPLED, BandwidthCurve, PairMatrix, Points, RankMeasurements, measurements
from envcheck.runner.schema import OutcomeRow

# What lags this much behind the others gets the strongest cell.
_DARKEST: Final = 0.3


class Figure(NamedTuple):
    """A drawing with its caption, and (class, name) of each curve where there are several."""

    caption: str
    drawing: Drawing
    legend: Sequence[tuple[str, str]] = ()


def figures(outcome: OutcomeRow) -> Iterator[Figure]:
    """Yield the drawings of a check's measurements."""
    measured = measurements(outcome)
    yield from _curves(outcome, measured.curves)
    yield from _latencies(outcome, measured.latencies)
    yield from _lateness_map(outcome, measured.ranks)
    yield from _values_map(outcome, measured.ranks)
    yield from _matrix(outcome, measured.pairs)
    yield from _over_time(outcome, measured.ranks)
    yield from _rounds(outcome)


def _curves(outcome: OutcomeRow, curves: Iterable[BandwidthCurve]) -> Iterator[Figure]:
    lines = [PlotLine(curve.collective or curve.rate, curve.points) for curve in curves if len(curve.points) > 1]
    if lines:
        limit = outcome.limit if outcome.limit and outcome.unit == outcome.limit.unit == "GB/s" else None
        bound = phrases.number(limit.value) if limit else None
        svg = chart(lines, SIZES, "GB/s", bound, f"{outcome.id}: bandwidth by message size")
        yield Figure(f"{outcome.id}: bus bandwidth by message size", svg, legend(lines))


def _latencies(outcome: OutcomeRow, latencies: Mapping[str, Points]) -> Iterator[Figure]:
    rows = {name: {size: seconds * 1e6 for size, seconds in points} for name, points in latencies.items()}
    sizes = sorted({size for points in rows.values() for size in points})
    if rows:
        cells = {name: [_cell(points.get(size)) for size in sizes] for name, points in rows.items()}
        svg = heat_map([phrases.size(size) for size in sizes], cells, f"{outcome.id}: latency")
        yield Figure(f"{outcome.id}: median latency of small messages, µs, on the slowest rank", svg)


def _cell(value: float | None) -> HeatCell:
    return HeatCell(0.0, "?" if value is None else f"{value:.4g}")


def _lateness_map(outcome: OutcomeRow, ranks: Iterable[RankMeasurements]) -> Iterator[Figure]:
    """Yield how much slower than the median rank each one was: by size, or of several collectives at the largest."""
    rows = {rank.owner: times for rank in ranks if (times := _times(rank))}
    columns = list(dict.fromkeys(column for times in rows.values() for column in times))
    if len(rows) > 1:
        cells = {owner: _late([t.get(c) for c in columns], _middles(rows, columns)) for owner, t in rows.items()}
        svg = heat_map(columns, cells, f"{outcome.id}: seconds of each rank over the middle rank's")
        yield Figure(f"{outcome.id}: time of each rank against the middle one", svg)


def _times(rank: RankMeasurements) -> dict[str, float]:
    """Return a rank's seconds: at each size of one collective, at the largest of several, or of a round of work."""
    if "" in rank.seconds:
        return {phrases.size(size): seconds for size, seconds in rank.seconds[""]}
    work = {"a round of work": rank.work} if rank.work and rank.work > 0 else {}
    return work | {collective: points[-1].value for collective, points in rank.seconds.items()}


def _middles(rows: Mapping[str, Mapping[str, float]], columns: Iterable[str]) -> list[float]:
    columns_sorted = [sorted(times[column] for times in rows.values() if column in times) for column in columns]
    return [values[len(values) // 2] for values in columns_sorted]


def _late(times: Sequence[float | None], middles: Sequence[float]) -> list[HeatCell]:
    return [_lateness(took, middle) for took, middle in zip(times, middles, strict=True)]


def _lateness(seconds: float | None, middle: float) -> HeatCell:
    if seconds is None:
        return HeatCell(0.0, "?")
    late = seconds / middle - 1
    return HeatCell(min(max(late / _DARKEST, 0), 1), f"{late:+.0%}" if round(late, 2) else "0%")


def _values_map(outcome: OutcomeRow, ranks: Iterable[RankMeasurements]) -> Iterator[Figure]:
    """Yield what each rank reached of each of its `values`, the furthest below the best the strongest."""
    reached = {rank.owner: rank.values for rank in ranks if rank.values}
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


def _matrix(outcome: OutcomeRow, pairs: PairMatrix | None) -> Iterator[Figure]:
    """Yield the matrix from GPU to GPU, the furthest from the best the strongest: of a time the least is best."""
    rows = pairs.rows if pairs else []
    good = [value for i, row in enumerate(rows) for j, value in enumerate(row) if i != j and value and value > 0]
    if not good:
        return
    slow = outcome.unit in ("s", "ms", "us", "µs")
    best = min(good) if slow else max(good)
    cells = {
        f"from {i}": [_weakness(value, best, own=i == j, slow=slow) for j, value in enumerate(row)]
        for i, row in enumerate(rows)
    }
    unit = f", {outcome.unit}" if outcome.unit else ""
    caption = f"{outcome.id}: GPU to GPU{unit} (the stronger, the further {'above' if slow else 'below'} the best)"
    yield Figure(caption, heat_map([f"to {j}" for j in range(len(rows))], cells, f"{outcome.id} GPU to GPU"))


def _weakness(value: float | None, best: float, *, own: bool, slow: bool) -> HeatCell:
    if own or value is None:
        return HeatCell(0.0, "-" if own else "?")
    lag = 1 - (best / value if slow and value > 0 else value / best)
    return HeatCell(min(max(lag, 0), 1), f"{value:.3g}")


def _over_time(outcome: OutcomeRow, ranks: Sequence[RankMeasurements]) -> Iterator[Figure]:
    """Yield the speed, clock, power and heat of each rank while it worked, those that a finding names over the rest."""
    yield from _timed(outcome, {rank.owner: rank.speed for rank in ranks}, "speed", "TFLOP/s")
    for quantity, unit in SAMPLED.items():
        yield from _timed(outcome, {rank.owner: rank.samples[quantity] for rank in ranks}, quantity, unit)


def _timed(outcome: OutcomeRow, series: Mapping[str, Points], name: str, unit: str) -> Iterator[Figure]:
    blamed = outcome.details.get("rank")
    drawn = [
        PlotLine(owner, points, hot=owner.split(",")[0] == f"rank {blamed}")
        for owner, points in series.items()
        if len(points) > 1
    ]
    if drawn:
        yield _drawn(f"{outcome.id}: {name} over time", drawn, SECONDS, unit)


def _rounds(outcome: OutcomeRow) -> Iterator[Figure]:
    values = outcome.spread.values if outcome.spread else []
    if len(values) > 1 and len(set(values)) > 1 and min(values) >= 0:
        points = [(float(number), value) for number, value in enumerate(values, start=1)]
        yield _drawn(f"{outcome.id}: by round", [PlotLine(outcome.id, points)], ROUNDS, outcome.unit)


def _drawn(caption: str, lines: list[PlotLine], axis: Axis, unit: str) -> Figure:
    return Figure(caption, chart(lines, axis, unit, None, caption), legend(lines))
