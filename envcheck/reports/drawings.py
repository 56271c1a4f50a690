"""Curves and heat maps of what was measured, as inline SVG that follows the page's colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any, Final, NamedTuple

from envcheck.reports import words
from envcheck.runner.record import OutcomeRow

_WIDTH, _HEIGHT = 620, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 30, 16, 40
_TICKS: Final = 4
_CELL, _ROW = 62, 24
_SIDE: Final = 150
_MOST: Final = 64
# A rank this much slower than the middle one gets the darkest cell.
_DARKEST: Final = 0.3
_RATES: Final = ("busbw", "algbw")


class Line(NamedTuple):
    """A curve: its name and its points (bytes, GB/s)."""

    name: str
    points: list[tuple[float, float]]


def lines(details: dict[str, Any]) -> list[Line]:
    """Return the curves in an outcome's details: every list of {bytes, busbw or algbw}, at any depth of names."""
    found = []
    for name, value in details.items():
        if isinstance(value, list):
            found += _read(name, [point for point in value if isinstance(point, dict)])
        if isinstance(value, dict):
            found += [Line(f"{name} {line.name}", line.points) for line in lines(value)]
    return found


def _read(name: str, points: list[dict[str, Any]]) -> list[Line]:
    for rate in _RATES:
        pairs = [(words.number(point.get("bytes")), words.number(point.get(rate))) for point in points]
        good = sorted((x, y) for x, y in pairs if x is not None and y is not None and x >= 1 and y > 0)
        if len({x for x, _ in good}) > 1:
            return [Line(rate if name == "curve" else f"{name} {rate}", good)]
    return []


def curve(drawn: Sequence[Line], bound: float | None, title: str) -> str:
    """Return the curves over a logarithmic size axis, with the limit as a dashed line."""
    xs = [x for line in drawn for x, _ in line.points]
    low, high = math.log2(min(xs)), math.log2(max(xs))
    top = _round_up(max([y for line in drawn for _, y in line.points] + ([bound] if bound else [])))

    def at(x: float, y: float) -> tuple[float, float]:
        across = (math.log2(x) - low) / (high - low or 1)
        return (
            _LEFT + across * (_WIDTH - _LEFT - _RIGHT),
            _HEIGHT - _BOTTOM - min(y / top, 1) * (_HEIGHT - _TOP - _BOTTOM),
        )

    parts = [_grid(top), *(_size(x, at(x, 0)[0]) for x in _spread(sorted(set(xs))))]
    if bound:
        y = at(min(xs), bound)[1]
        parts.append(f'<line class="limit" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="limit-text" x="{_LEFT + 6}" y="{y - 5:.1f}">limit {bound:g} GB/s</text>')
    parts += [_line(number, line, [at(x, y) for x, y in line.points]) for number, line in enumerate(drawn)]
    return _svg(_WIDTH, _HEIGHT, title, "".join(parts))


def ranks_map(outcome: OutcomeRow) -> str:
    """Return a heat map of how much slower than the middle one each rank was, by size; "" where it was not measured."""
    rows = {}
    for entry in outcome.ranks:
        points = entry.get("curve") if isinstance(entry, dict) else None
        if isinstance(points, list):
            times = {
                words.number(p.get("bytes")): words.number(p.get("seconds")) for p in points if isinstance(p, dict)
            }
            rows[f"rank {entry.get('rank')} {_short(entry.get('device'))}"] = times
    sizes = sorted({x for times in rows.values() for x in times if x and x > 0})
    if len(rows) < 2 or not sizes or len(rows) > _MOST:  # noqa: PLR2004 (one rank is compared with none)
        return ""
    return heat_map([words.size(x) for x in sizes], _late(rows, sizes), "seconds of each rank over the middle rank's")


def _late(rows: dict[str, dict[float | None, float | None]], sizes: list[float]) -> dict[str, list[tuple[float, str]]]:
    middles = {}
    for size in sizes:
        known = sorted(t for times in rows.values() if (t := times.get(size)) and t > 0)
        middles[size] = known[len(known) // 2] if known else 0.0
    return {name: [_lateness(times.get(size), middles[size]) for size in sizes] for name, times in rows.items()}


def _lateness(seconds: float | None, middle: float) -> tuple[float, str]:
    if not seconds or not middle:
        return 0.0, "?"
    late = seconds / middle - 1
    return min(max(late / _DARKEST, 0), 1), f"{late:+.0%}" if round(late, 2) else "0%"


def values_map(outcome: OutcomeRow) -> str:
    """Return a heat map of what each rank reached of each of its `values`, the furthest below the best darkest."""
    reached = {}
    for entry in outcome.ranks:
        values = entry.get("values") if isinstance(entry, dict) else None
        if isinstance(values, dict):
            known = {str(name): words.number(value) for name, value in values.items()}
            reached[f"rank {entry.get('rank')} {_short(entry.get('device'))}"] = known
    names = sorted({name for values in reached.values() for name in values})
    best = {name: max((values.get(name) or 0.0 for values in reached.values()), default=0.0) for name in names}
    if not 1 < len(reached) <= _MOST or not names or min(best.values()) <= 0 or not outcome.unit.endswith("/s"):
        return ""
    rows = {owner: [_behind(values.get(name), best[name]) for name in names] for owner, values in reached.items()}
    return heat_map(names, rows, f"{outcome.unit} of each rank")


def _behind(value: float | None, best: float) -> tuple[float, str]:
    return (0.0, "?") if value is None else (min(max((1 - value / best) / _DARKEST, 0), 1), f"{value:.4g}")


def matrix(rows: Any, title: str) -> str:
    """Return a heat map of a square of numbers, e.g. GB/s from GPU to GPU, the weakest darkest; else ""."""
    if not isinstance(rows, list) or not 1 < len(rows) <= _MOST or not all(isinstance(row, list) for row in rows):
        return ""
    if any(len(row) != len(rows) for row in rows):
        return ""
    numbers = [[words.number(value) for value in row] for row in rows]
    off = [v for i, row in enumerate(numbers) for j, v in enumerate(row) if v is not None and i != j]
    best = max(off, default=0.0)
    if best <= 0:
        return ""
    cells = {
        f"from {i}": [_weakness(value, best, own=i == j) for j, value in enumerate(row)]
        for i, row in enumerate(numbers)
    }
    return heat_map([f"to {j}" for j in range(len(rows))], cells, title)


def _weakness(value: float | None, best: float, *, own: bool) -> tuple[float, str]:
    if own or value is None:
        return 0.0, "-" if own else "?"
    return min(max(1 - value / best, 0), 1), f"{value:.3g}"


def heat_map(columns: Sequence[str], rows: dict[str, list[tuple[float, str]]], title: str) -> str:
    """Return cells with their text, each as dark as its share of 1."""
    width, height = _SIDE + _CELL * len(columns) + 2, _ROW * (len(rows) + 1) + 4
    parts = [
        f'<text class="axis" x="{_SIDE + (i + 0.5) * _CELL:.0f}" y="15" text-anchor="middle">{escape(c)}</text>'
        for i, c in enumerate(columns)
    ]
    for number, (name, cells) in enumerate(rows.items(), start=1):
        y = number * _ROW
        parts.append(
            f'<text class="axis" x="{_SIDE - 8}" y="{y + 16}" text-anchor="end">{escape(words.printable(name))}</text>'
        )
        parts += [_cell(_SIDE + i * _CELL, y, share, text) for i, (share, text) in enumerate(cells)]
    return _svg(width, height, title, "".join(parts))


def _cell(x: float, y: float, share: float, text: str) -> str:
    box = f'x="{x}" y="{y}" width="{_CELL - 2}" height="{_ROW - 2}"'
    return (
        f'<rect class="cell" {box}/><rect class="heat" {box} fill-opacity="{share * 0.75:.2f}"/>'
        f'<text class="number" x="{x + _CELL / 2 - 1}" y="{y + 15}" text-anchor="middle">{escape(text)}</text>'
    )


def _grid(top: float) -> str:
    parts = []
    for tick in range(_TICKS + 1):
        y = _HEIGHT - _BOTTOM - tick / _TICKS * (_HEIGHT - _TOP - _BOTTOM)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        label = f"{top * tick / _TICKS:.4g}"
        parts.append(f'<text class="axis" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    middle = (_HEIGHT - _BOTTOM + _TOP) / 2
    turned = f'transform="rotate(-90 14 {middle})"'
    return "".join(parts) + f'<text class="axis" x="14" y="{middle}" text-anchor="middle" {turned}>GB/s</text>'


def _size(size: float, x: float) -> str:
    return f'<text class="axis" x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{words.size(size)}</text>'


def _line(number: int, line: Line, points: list[tuple[float, float]]) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(
        f'<circle class="dot c{number % 4}" cx="{x:.1f}" cy="{y:.1f}" r="3">'
        f"<title>{escape(words.printable(line.name))} {words.size(size)}: {rate:.4g} GB/s</title></circle>"
        for (x, y), (size, rate) in zip(points, line.points, strict=True)
    )
    x, y = points[-1]
    name = escape(words.printable(line.name))
    label = f'<text class="axis" x="{x:.1f}" y="{max(y - 8, 10):.1f}" text-anchor="end">{name}</text>'
    return f'<polyline class="curve c{number % 4}" points="{path}"/>{dots}{label}'


def _svg(width: float, height: float, title: str, inner: str) -> str:
    label = escape(words.printable(title), quote=True)
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" style="max-width:{width:.0f}px"'
    return f'<svg role="img" aria-label="{label}" {size}>{inner}</svg>'


def _round_up(value: float) -> float:
    """Return the next of 1, 2, 4, 5, 8, 10 times a power of ten, so that four ticks are round numbers."""
    power = 10.0 ** math.floor(math.log10(value))
    return next((step * power for step in (1, 2, 4, 5, 6, 8) if step * power >= value), 10 * power)


def _spread(sizes: list[float]) -> list[float]:
    return sizes[:: max(1, math.ceil(len(sizes) / 9))]


def _short(device: Any) -> str:
    text = str(device or "")
    return text[:12] if text.startswith(("GPU-", "MIG-")) else text[-12:]
