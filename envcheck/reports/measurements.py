"""The measurements of an outcome that reports draw and compare, as types; and drawn for a page.

Checks write them into these fields (docs/adding-a-check.md); a value of another form is left out:

- `details`: `curve` or `curves` (bus bandwidth by message size), `matrix` (GPU to GPU).
- an entry of `ranks`: `curve`, `curves` and `latency` as this rank saw them, `values` (in the outcome's unit),
  `points` (TFLOP/s over time), `load.samples` (the GPU over time), `gpus` and `matrix` (by the GPUs' UUIDs).
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, Final, NamedTuple

from envcheck.counting import counted, printable
from envcheck.reports import phrases
from envcheck.runner.schema import OutcomeRow

_MOST: Final = 64
# What is measured over time, with its unit; all but the speed are samples of the GPU (checks/support/sampler.py).
TIMED: Final = {"speed": "TFLOP/s", "clock": "MHz", "power": "W", "temperature": "°C", "utilization": "%"}
SLOW_UNITS: Final = ("s", "ms", "us", "µs")

_WIDTH, _HEIGHT = 480, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 24, 16, 40
_TICKS: Final = 4
_LABELS: Final = 7
# More points than this are drawn as a line without a dot each.
_DOTTED: Final = 24
COLOURS: Final = 6
# What lags this much behind the others gets the strongest cell.
_DARKEST: Final = 0.3

# (bytes, or seconds since the start; a value above 0), sorted.
Points = list[tuple[float, float]]


@dataclasses.dataclass(frozen=True)
class PairMatrix:
    """What each GPU (row) reaches to each other (column), None where nothing was measured. `gpus`: UUIDs, or empty."""

    gpus: list[str]
    rows: list[list[float | None]]


@dataclasses.dataclass(frozen=True)
class RankMeasurements:
    """The measurements of one rank.

    `owner` is the rank, with the beginning of its GPU's UUID; `gpu` is the whole UUID, or the rank on a CPU. `seconds`
    and `latencies` (median seconds) are by message size for each collective, `over_time` each quantity of TIMED.
    """

    owner: str
    gpu: str
    seconds: dict[str, Points]
    latencies: dict[str, Points]
    values: dict[str, float | None]
    over_time: dict[str, Points]
    pairs: PairMatrix | None


def ranks_of(outcome: OutcomeRow) -> list[RankMeasurements]:
    """Return the measurements of each rank, of at most 64."""
    entries = [entry for entry in outcome.ranks[:_MOST] if isinstance(entry, dict)]
    return [_of_rank(entry, number) for number, entry in enumerate(entries)]


def _of_rank(entry: Mapping[str, Any], number: int) -> RankMeasurements:
    device, rank = str(entry.get("device") or ""), f"rank {entry.get('rank', number)}"
    samples = _mapping(entry.get("load")).get("samples")
    speed = _points(entry.get("points"), "at", "tflops")
    return RankMeasurements(
        owner=f"{rank}, {device[:12]}" if device.startswith(("GPU-", "MIG-")) else rank,
        gpu=device if entry.get("is_cuda") else rank,
        seconds=_curves(entry, "seconds"),
        latencies=_by_collective(entry.get("latency"), "p50"),
        values={str(name): phrases.number(value) for name, value in _mapping(entry.get("values")).items()},
        over_time={name: speed if name == "speed" else _points(samples, "at", name) for name in TIMED},
        pairs=_pairs(entry),
    )


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
    return sorted((x, y) for x, y in values.items() if at != "bytes" or x >= 1)


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


class PlotLine(NamedTuple):
    """A curve: its name, its points in the units of the axes, and whether it is the one to look at."""

    name: str
    points: Sequence[tuple[float, float]]
    hot: bool = False


class Figure(NamedTuple):
    """A drawing as HTML, its caption, and (class, name) of each curve where there are several."""

    caption: str
    drawing: str
    legend: Sequence[tuple[str, str]] = ()


def figures(outcome: OutcomeRow) -> Iterator[Figure]:
    """Yield the drawings of a check's measurements: curves by size, ranks and pairs of GPUs compared, samples."""
    rates = ((rate, _curves(outcome.details, rate)) for rate in ("busbw", "algbw"))
    rate, curves = next((found for found in rates if found[1]), ("", {}))
    if lines := [PlotLine(name or rate, points) for name, points in curves.items() if len(points) > 1]:
        limit = outcome.limit if outcome.limit and outcome.unit == outcome.limit.unit == "GB/s" else None
        bound = phrases.number(limit.value) if limit else None
        yield chart(f"{outcome.id}: bus bandwidth by message size", lines, "GB/s", bound, sizes=True)
    ranks = ranks_of(outcome)
    yield from _values_table(outcome, {rank.owner: rank.values for rank in ranks if rank.values})
    yield from _pairs_table(outcome)
    blamed = f"rank {outcome.details.get('rank')}"
    for quantity, unit in TIMED.items():
        series = [(rank.owner, rank.over_time[quantity]) for rank in ranks]
        drawn = [PlotLine(name, points, name.split(",")[0] == blamed) for name, points in series if len(points) > 1]
        if drawn:
            yield chart(f"{outcome.id}: {quantity} over time", drawn, unit)


def _values_table(outcome: OutcomeRow, reached: Mapping[str, Mapping[str, float | None]]) -> Iterator[Figure]:
    """Yield what each rank reached of each of its `values`, the furthest below the best the strongest."""
    names = list(dict.fromkeys(name for values in reached.values() for name in values))
    best = {name: max(values.get(name) or 0.0 for values in reached.values()) for name in names}
    if names and min(best.values()) > 0 and outcome.unit.endswith("/s"):
        rows = {owner: [_cell(values.get(name), best[name]) for name in names] for owner, values in reached.items()}
        what = f"{outcome.unit} that each rank (one process, with its GPU) reached; darker is further behind the best"
        yield _table(f"{outcome.id}: {what}", names, rows)


def _pairs_table(outcome: OutcomeRow) -> Iterator[Figure]:
    """Yield the matrix from GPU to GPU, the furthest from the best the strongest: of a time the least is best."""
    pairs = _pairs(outcome.details)
    rows = pairs.rows if pairs else []
    good = [value for i, row in enumerate(rows) for j, value in enumerate(row) if i != j and value and value > 0]
    if good:
        slow = outcome.unit in SLOW_UNITS
        best = min(good) if slow else max(good)
        cells = {
            f"from {i}": [_cell(v, best, slow=slow) if i != j else "<td>-</td>" for j, v in enumerate(row)]
            for i, row in enumerate(rows)
        }
        where = f"(the darker, the further {'above' if slow else 'below'} the best)"
        unit = f", {outcome.unit}" if outcome.unit else ""
        yield _table(f"{outcome.id}: GPU to GPU{unit} {where}", [f"to {j}" for j in range(len(rows))], cells)


def _cell(value: float | None, best: float, *, slow: bool = False) -> str:
    if value is None:
        return "<td>?</td>"
    lag = 1 - (best / value if slow and value > 0 else value / best)
    return f'<td style="--lag:{min(max(lag / _DARKEST, 0), 1):.2f}">{phrases.quantity(float(value), "")}</td>'


def _table(caption: str, columns: Sequence[str], rows: Mapping[str, Sequence[str]]) -> Figure:
    head = "".join(f'<th scope="col">{_safe(column)}</th>' for column in columns)
    body = "".join(f'<tr><th scope="row">{_safe(name)}</th>{"".join(cells)}</tr>' for name, cells in rows.items())
    return Figure(caption, f'<table class="heat"><tr><td></td>{head}</tr>{body}</table>')


def chart(
    caption: str, lines: Sequence[PlotLine], unit: str, bound: float | None = None, *, sizes: bool = False
) -> Figure:
    """Return the curves over seconds, or over `sizes` in equal factors, from zero on; the limit is a dashed line."""
    xs = sorted({x for line in lines for x, _ in line.points})
    top = _round_up(max([y for line in lines for _, y in line.points] + ([bound] if bound else [])))
    place, label = (math.log2, phrases.size) if sizes else (float, "{:.4g}".format)
    low, high = place(xs[0]), place(xs[-1])

    def at(x: float, y: float) -> tuple[float, float]:
        left = _LEFT + (place(x) - low) / (high - low or 1) * (_WIDTH - _LEFT - _RIGHT)
        return left, _HEIGHT - _BOTTOM - min(max(y / top, 0), 1) * (_HEIGHT - _TOP - _BOTTOM)

    parts = []
    for tick in range(_TICKS + 1):
        y = at(xs[0], top * tick / _TICKS)[1]
        parts += [_across("grid", y), _text(phrases.quantity(top * tick / _TICKS, ""), _LEFT - 8, y + 4, "end")]
    middle = (_HEIGHT - _BOTTOM + _TOP) / 2
    parts += [_text(unit, 10, middle, "middle", f' transform="rotate(-90 10 {middle})"')]
    parts += [_text("message size" if sizes else "seconds", (_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 4, "middle")]
    # Sizes are labelled where they were measured, seconds at round numbers.
    marks = xs[:: math.ceil(len(xs) / _LABELS)] if sizes else _round_marks(xs)
    parts += [_text(label(x), at(x, 0)[0], _HEIGHT - _BOTTOM + 18, "middle") for x in marks]
    classes = _classes(lines)
    # What has to be looked at is drawn last, over the others.
    for number in sorted(range(len(lines)), key=lambda number: lines[number].hot):
        line, kind = lines[number], classes[number]
        places = [at(*point) for point in line.points]
        parts.append(f'<polyline class="curve {kind}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>')
        for (x, y), (when, value) in zip(places, line.points, strict=True) if len(places) <= _DOTTED else ():
            said = f"<title>{_safe(f'{line.name} {label(when)}: {value:.4g} {unit}')}</title>"
            parts.append(f'<circle class="dot {kind}" cx="{x:.1f}" cy="{y:.1f}" r="3">{said}</circle>')
    if bound:
        y, named = at(xs[0], bound)[1], f"limit {phrases.quantity(bound, unit)}"
        below = y - 5 if y > _TOP + 16 else y + 14
        parts += [_across("limit", y), _text(named, _LEFT + 6, below, "start", "", "limit-text")]
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" style="width:{_WIDTH}px"'
    svg = f'<svg role="img" aria-label="{_safe(caption)}" {size}>{"".join(parts)}</svg>'
    return Figure(caption, svg, _legend(lines, classes))


def _classes(lines: Sequence[PlotLine]) -> list[str]:
    if any(line.hot for line in lines):
        return ["hot" if line.hot else "calm" for line in lines]
    return [f"c{number % COLOURS}{' dashed' if number >= COLOURS else ''}" for number in range(len(lines))]


def _legend(lines: Sequence[PlotLine], classes: Sequence[str]) -> list[tuple[str, str]]:
    """Return (class, name) of what is drawn: of many alike only the one to look at, and the others in one."""
    others = classes.count("calm")
    named = [(kind, line.name) for kind, line in zip(classes, lines, strict=True) if kind != "calm"]
    return [*named, ("calm", counted(others, "other"))] if others else named if len(named) > 1 else []


def _across(kind: str, y: float) -> str:
    return f'<line class="{kind}" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _text(text: str, x: float, y: float, anchor: str, more: str = "", kind: str = "axis") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{_safe(text)}</text>'


def _safe(text: str) -> str:
    return escape(printable(text), quote=True)


def _round_up(value: float) -> float:
    """Return the next of 1, 2, 4, 6, 8, 10 times a power of ten, so that four ticks are round numbers."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next((step * power for step in (1, 2, 4, 6, 8) if step * power >= value), 10 * power)


def _round_marks(values: list[float]) -> list[float]:
    step = max(_round_up((values[-1] - values[0]) / (_LABELS - 1)), 1.0)
    first = math.ceil(values[0] / step)
    return [number * step for number in range(first, math.floor(values[-1] / step) + 1)] or values[:1]
