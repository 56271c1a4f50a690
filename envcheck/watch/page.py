"""A watched run as one HTML page that needs nothing else: the summary, then each series as a curve."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Final

from envcheck.printable import printable
from envcheck.reports.html import charts
from envcheck.reports.html.svg import SECONDS, PlotLine, chart, legend
from envcheck.watch.samples import GpuSample, TreeSample, WatchRecord
from envcheck.watch.summary import grouped, summarize

_CSS: Final = Path(charts.__file__).with_name("page.css")
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_CLASS: Final = {"good": "pass", "low": "warn", "info": "skip", "unknown": "error"}
_MOST_POINTS: Final = 400
_GIB: Final = float(1 << 30)
_GPU: Final[tuple[tuple[str, str, Callable[[GpuSample], float | None], float], ...]] = (
    ("GPU utilization", "%", lambda s: s.utilization, 1),
    ("GPU memory in use", "GiB", lambda s: s.memory_used, 1 / _GIB),
    ("power", "W", lambda s: s.power_draw, 1),
    ("clock of the multiprocessors", "MHz", lambda s: s.clock_sm, 1),
    ("temperature", "C", lambda s: s.temperature, 1),
)


def page(seen: WatchRecord) -> str:
    """Return the page; what the command is called cannot steer it."""
    title = _text(f"envcheck watch: {shlex.join(seen.command)}")
    rows = "".join(
        f'<tr><td class="id">{_text(line.what)}</td><td class="status {_CLASS[line.status]}">{line.status}</td>'
        f"<td>{_text(line.text)}</td></tr>\n"
        for line in summarize(seen)
    )
    figures = "".join(_figures(seen))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>\n{_CSS.read_text(encoding='utf-8')}</style>\n</head>\n<body>\n"
        f'<header class="verdict"><h1>{title}</h1>'
        f"<p>exit code {seen.exit_code} after {seen.seconds:.1f} s</p></header>\n"
        f'<main>\n<h2>Summary</h2>\n<div class="wide"><table><tbody>\n{rows}</tbody></table></div>\n'
        f'<h2>Over time</h2>\n<div class="figures">\n{figures}</div>\n</main>\n</body>\n</html>\n'
    )


def _figures(seen: WatchRecord) -> Iterator[str]:
    by_gpu = grouped(seen.gpus)
    for title, unit, read, factor in _GPU:
        lines = [
            PlotLine(gpu, thinned([(s.at, v * factor) for s in samples if (v := read(s)) is not None]))
            for gpu, samples in by_gpu.items()
        ]
        yield from _figure(title, unit, lines)
    yield from _figure("busy cores", "cores", [PlotLine("cores", thinned(_rates(seen.tree)))])
    yield from _figure(
        "memory of the processes", "GiB", [PlotLine("", thinned([(s.at, s.rss / _GIB) for s in seen.tree]))]
    )
    kinds: tuple[tuple[str, Callable[[TreeSample], int]], ...] = (
        ("read", lambda s: s.read),
        ("written", lambda s: s.written),
        ("received", lambda s: s.received),
        ("sent", lambda s: s.sent),
    )
    traffic = [PlotLine(name, thinned([(s.at, read(s) / 1e6) for s in seen.tree])) for name, read in kinds]
    yield from _figure("disk and network since the start", "MB", traffic)


def _figure(title: str, unit: str, lines: Sequence[PlotLine]) -> Iterator[str]:
    drawn = [line for line in lines if len(line.points) > 1]
    if not drawn or max(value for line in drawn for _, value in line.points) <= 0:
        return
    keys = "".join(f'<li><span class="key {name}"></span>{_text(label)}</li>' for name, label in legend(drawn))
    below = f'<ul class="legend">{keys}</ul>' if keys else ""
    svg = chart(drawn, SECONDS, unit, None, title).svg
    yield f"<figure><figcaption>{_text(f'{title}, {unit}')}</figcaption>{svg}{below}</figure>\n"


def _rates(tree: Sequence[TreeSample]) -> list[tuple[float, float]]:
    """Return the busy cores between each two samples."""
    return [(b.at, max(0.0, b.cpu - a.cpu) / (b.at - a.at)) for a, b in pairwise(tree) if b.at > a.at]


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return at most _MOST_POINTS points: the mean of each stretch, so that no peak is invented."""
    size = -(-len(points) // _MOST_POINTS)
    parts = [points[start : start + size] for start in range(0, len(points), max(size, 1))]
    return [(part[0][0], sum(value for _, value in part) / len(part)) for part in parts]


def _text(text: str) -> str:
    return escape(printable(text))
