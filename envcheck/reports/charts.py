"""Charts and heat maps of measurements as inline SVG that follows the page's colours.

`figures` says what of an outcome is worth drawing: curves by size, samples over time, ranks and pairs of GPUs compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Final, NamedTuple

from envcheck.counting import counted, printable
from envcheck.reports import phrases
from envcheck.reports.measurements import SAMPLED, BandwidthCurve, PairMatrix, Points, RankMeasurements, measurements
from envcheck.runner.schema import OutcomeRow

_WIDTH, _HEIGHT = 480, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 24, 16, 40
_TICKS: Final = 4
_ROW: Final = 24
_LETTER: Final = 6.6
_LABELS: Final = 7
# More points than this are drawn as a line without a dot each.
_DOTTED: Final = 24
COLOURS: Final = 6
# What lags this much behind the others gets the strongest cell.
_DARKEST: Final = 0.3


class PlotLine(NamedTuple):
    """A curve: its name, its points in the units of the axes, and whether it is the one to look at.

    One that is not `dotted` has no mark at its points: of hundreds of curves each mark costs more than its curve.
    """

    name: str
    points: Sequence[tuple[float, float]]
    hot: bool = False
    dotted: bool = True


class Drawing(NamedTuple):
    """An SVG and how wide it is, in pixels."""

    svg: str
    width: float


class Axis(NamedTuple):
    """The axis along which points lie: what it shows, its labels, and whether equal steps are equal factors."""

    title: str
    label: Callable[[float], str]
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """Return where a value lies, before it is scaled to the drawing."""
        return math.log2(value) if self.logarithmic else value


SIZES: Final = Axis("message size", phrases.size, logarithmic=True)
SECONDS: Final = Axis("seconds", lambda value: f"{value:.4g}")


class HeatCell(NamedTuple):
    """A cell of a heat map: how strong it is, from 0 to 1, and its text."""

    share: float
    text: str


def chart(lines: Sequence[PlotLine], axis: Axis, unit: str, bound: float | None, title: str) -> Drawing:
    """Return the curves over their axis from zero on, with the limit as a dashed line."""
    xs = sorted({x for line in lines for x, _ in line.points})
    top = _round_up(max([y for line in lines for _, y in line.points] + ([bound] if bound else [])))
    low, high = axis.place(xs[0]), axis.place(xs[-1])

    def at(x: float, y: float) -> tuple[float, float]:
        across = (axis.place(x) - low) / (high - low or 1)
        left = _LEFT + across * (_WIDTH - _LEFT - _RIGHT)
        return left, _HEIGHT - _BOTTOM - min(max(y / top, 0), 1) * (_HEIGHT - _TOP - _BOTTOM)

    parts = [_grid(top, unit), _axis_text(axis.title, (_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 4, "middle")]
    parts += [_axis_text(axis.label(x), at(x, 0)[0], _HEIGHT - _BOTTOM + 18, "middle") for x in _marks(axis, xs)]
    # What has to be looked at is drawn last, over the others.
    order = sorted(range(len(lines)), key=lambda number: lines[number].hot)
    parts += [
        _curve_line(lines[n], colour(n, lines), [at(*point) for point in lines[n].points], axis, unit) for n in order
    ]
    if bound:
        parts.append(_limit_line(at(xs[0], bound)[1], bound, unit))
    return _svg(_WIDTH, _HEIGHT, title, "".join(parts))


def colour(number: int, lines: Sequence[PlotLine]) -> str:
    """Return the class a curve is drawn in: its own colour; where one is to be looked at, that one's or the others'."""
    if any(line.hot for line in lines):
        return "hot" if lines[number].hot else "calm"
    return f"c{number % COLOURS}{' dashed' if number >= COLOURS else ''}"


def legend(lines: Sequence[PlotLine]) -> list[tuple[str, str]]:
    """Return (class, name) of what is drawn: of many alike only the one to look at, and the others in one."""
    if not any(line.hot for line in lines):
        return [(colour(number, lines), line.name) for number, line in enumerate(lines)] if len(lines) > 1 else []
    entries = [("hot", line.name) for line in lines if line.hot]
    hidden = len(lines) - len(entries)
    return [*entries, ("calm", counted(hidden, "other"))] if hidden else entries


def heat_map(columns: Sequence[str], rows: Mapping[str, Sequence[HeatCell]], title: str) -> Drawing:
    """Return cells with their text, each as strong as its share of 1."""
    width = max(52.0, *(len(column) * _LETTER + 10 for column in columns))
    side = max(60.0, *(len(name) * _LETTER + 16 for name in rows))
    parts = [_axis_text(column, side + (i + 0.5) * width, 15, "middle") for i, column in enumerate(columns)]
    for number, (name, cells) in enumerate(rows.items(), start=1):
        parts.append(_axis_text(name, side - 8, number * _ROW + 16, "end"))
        parts += [_heat_cell(side + i * width, number * _ROW, width, cell) for i, cell in enumerate(cells)]
    return _svg(side + width * len(columns) + 2, _ROW * (len(rows) + 1) + 4, title, "".join(parts))


def _heat_cell(x: float, y: float, width: float, cell: HeatCell) -> str:
    box = f'x="{x:.0f}" y="{y}" width="{width - 2:.0f}" height="{_ROW - 2}"'
    text = escape(printable(cell.text))
    return (
        f'<rect class="cell" {box}/><rect class="heat" {box} fill-opacity="{cell.share * 0.75:.2f}"/>'
        f'<text class="number" x="{x + width / 2 - 1:.0f}" y="{y + 15}" text-anchor="middle">{text}</text>'
    )


def _grid(top: float, unit: str) -> str:
    parts = []
    for tick in range(_TICKS + 1):
        y = _HEIGHT - _BOTTOM - tick / _TICKS * (_HEIGHT - _TOP - _BOTTOM)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_axis_text(f"{top * tick / _TICKS:.4g}", _LEFT - 8, y + 4, "end"))
    middle = (_HEIGHT - _BOTTOM + _TOP) / 2
    turned = f'transform="rotate(-90 14 {middle})"'
    title = escape(printable(unit))
    return "".join(parts) + f'<text class="axis" x="14" y="{middle}" text-anchor="middle" {turned}>{title}</text>'


def _axis_text(text: str, x: float, y: float, anchor: str) -> str:
    inner = escape(printable(text))
    return f'<text class="axis" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{inner}</text>'


def _limit_line(y: float, bound: float, unit: str) -> str:
    label = escape(printable(f"limit {bound:g} {unit}"))
    return (
        f'<line class="limit" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="limit-text" x="{_LEFT + 6}" y="{y - 5 if y > _TOP + 16 else y + 14:.1f}">{label}</text>'
    )


def _curve_line(line: PlotLine, kind: str, points: Sequence[tuple[float, float]], axis: Axis, unit: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    drawn = f'<polyline class="curve {kind}" points="{path}"/>'
    if len(points) > _DOTTED or not line.dotted:
        return drawn
    return drawn + "".join(
        f'<circle class="dot {kind}" cx="{x:.1f}" cy="{y:.1f}" r="3"><title>'
        f"{escape(printable(f'{line.name} {axis.label(at)}: {value:.4g} {unit}'))}</title></circle>"
        for (x, y), (at, value) in zip(points, line.points, strict=True)
    )


def _svg(width: float, height: float, title: str, inner: str) -> Drawing:
    label = escape(printable(title), quote=True)
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" style="width:{width:.0f}px"'
    return Drawing(f'<svg role="img" aria-label="{label}" {size}>{inner}</svg>', width)


def _round_up(value: float) -> float:
    """Return the next of 1, 2, 4, 6, 8, 10 times a power of ten, so that four ticks are round numbers."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next((step * power for step in (1, 2, 4, 6, 8) if step * power >= value), 10 * power)


def _marks(axis: Axis, values: list[float]) -> list[float]:
    """Return where the axis is labelled: at sizes that were measured, else at round numbers."""
    if axis.logarithmic:
        return values[:: math.ceil(len(values) / _LABELS)]
    step = max(_round_up((values[-1] - values[0]) / (_LABELS - 1)), 1.0)
    first = math.ceil(values[0] / step)
    return [number * step for number in range(first, math.floor(values[-1] / step) + 1)] or values[:1]


class Figure(NamedTuple):
    """A drawing with its caption, and (class, name) of each curve where there are several."""

    caption: str
    drawing: Drawing
    legend: Sequence[tuple[str, str]] = ()


def figures(outcome: OutcomeRow) -> Iterator[Figure]:
    """Yield the drawings of a check's measurements."""
    measured = measurements(outcome)
    yield from _curves(outcome, measured.curves)
    yield from _values_map(outcome, measured.ranks)
    yield from _matrix(outcome, measured.pairs)
    yield from _timed(outcome, {rank.owner: rank.speed for rank in measured.ranks}, "speed", "TFLOP/s")
    for quantity, unit in SAMPLED.items():
        yield from _timed(outcome, {rank.owner: rank.samples[quantity] for rank in measured.ranks}, quantity, unit)


def _curves(outcome: OutcomeRow, curves: Iterable[BandwidthCurve]) -> Iterator[Figure]:
    lines = [PlotLine(curve.collective or curve.rate, curve.points) for curve in curves if len(curve.points) > 1]
    if lines:
        limit = outcome.limit if outcome.limit and outcome.unit == outcome.limit.unit == "GB/s" else None
        bound = phrases.number(limit.value) if limit else None
        svg = chart(lines, SIZES, "GB/s", bound, f"{outcome.id}: bandwidth by message size")
        yield Figure(f"{outcome.id}: bus bandwidth by message size", svg, legend(lines))


def _values_map(outcome: OutcomeRow, ranks: Iterable[RankMeasurements]) -> Iterator[Figure]:
    """Yield what each rank reached of each of its `values`, the furthest below the best the strongest."""
    reached = {rank.owner: rank.values for rank in ranks if rank.values}
    names = list(dict.fromkeys(name for values in reached.values() for name in values))
    best = {name: max((values.get(name) or 0.0 for values in reached.values()), default=0.0) for name in names}
    if reached and names and min(best.values()) > 0 and outcome.unit.endswith("/s"):
        rows = {owner: [_behind(values.get(name), best[name]) for name in names] for owner, values in reached.items()}
        svg = heat_map(names, rows, f"{outcome.id}: {outcome.unit} of each rank")
        yield Figure(f"{outcome.id}: {outcome.unit} of each rank (the stronger, the further behind the best)", svg)


def _matrix(outcome: OutcomeRow, pairs: PairMatrix | None) -> Iterator[Figure]:
    """Yield the matrix from GPU to GPU, the furthest from the best the strongest: of a time the least is best."""
    rows = pairs.rows if pairs else []
    good = [value for i, row in enumerate(rows) for j, value in enumerate(row) if i != j and value and value > 0]
    if not good:
        return
    slow = outcome.unit in ("s", "ms", "us", "µs")
    best = min(good) if slow else max(good)
    cells = {
        f"from {i}": [HeatCell(0.0, "-") if i == j else _behind(v, best, slow=slow) for j, v in enumerate(row)]
        for i, row in enumerate(rows)
    }
    unit = f", {outcome.unit}" if outcome.unit else ""
    caption = f"{outcome.id}: GPU to GPU{unit} (the stronger, the further {'above' if slow else 'below'} the best)"
    yield Figure(caption, heat_map([f"to {j}" for j in range(len(rows))], cells, f"{outcome.id} GPU to GPU"))


def _behind(value: float | None, best: float, *, slow: bool = False) -> HeatCell:
    if value is None:
        return HeatCell(0.0, "?")
    lag = 1 - (best / value if slow and value > 0 else value / best)
    return HeatCell(min(max(lag / _DARKEST, 0), 1), f"{value:.4g}")


def _timed(outcome: OutcomeRow, series: Mapping[str, Points], name: str, unit: str) -> Iterator[Figure]:
    """Yield a quantity of each rank while it worked, the rank that a finding names over the others."""
    blamed = f"rank {outcome.details.get('rank')}"
    drawn = [
        PlotLine(owner, points, hot=owner.split(",")[0] == blamed)
        for owner, points in series.items()
        if len(points) > 1
    ]
    if drawn:
        caption = f"{outcome.id}: {name} over time"
        yield Figure(caption, chart(drawn, SECONDS, unit, None, caption), legend(drawn))
