"""A watched run as one HTML page that needs nothing else."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from envcheck import __version__
from envcheck.reports.formats import html
from envcheck.reports.measurements import SECONDS, PlotLine, chart
from envcheck.watch.record import GpuSample, TreeSample, WatchRecord, grouped, summarize

_CLASS: Final = {"good": "pass", "low": "warn", "info": "skip", "unknown": "error"}
_MOST_POINTS: Final = 400
_GIB: Final = float(1 << 30)
_GPU_CHARTS: Final[tuple[tuple[str, str, Callable[[GpuSample], float | None], float], ...]] = (
    ("GPU utilization", "%", lambda s: s.utilization, 1),
    ("GPU memory in use", "GiB", lambda s: s.memory_used, 1 / _GIB),
    ("power", "W", lambda s: s.power_draw, 1),
    ("clock of the multiprocessors", "MHz", lambda s: s.clock_sm, 1),
    ("temperature", "C", lambda s: s.temperature, 1),
)


def page(seen: WatchRecord) -> str:
    """Return the page; what the command is called cannot steer it."""
    title = f"envcheck watch: {shlex.join(seen.command)}"
    rows = "".join(
        f'<tr><td class="id">{html.text(line.what)}</td><td class="status {_CLASS[line.status]}">{line.status}</td>'
        f"<td>{html.text(line.text)}</td></tr>\n"
        for line in summarize(seen)
    )
    body = (
        f'<header class="verdict"><h1>{html.text(title)}</h1>'
        f"<p>exit code {seen.exit_code} after {seen.seconds:.1f} s</p></header>\n"
        f'<main>\n<h2>Summary</h2>\n<div class="wide"><table><tbody>\n{rows}</tbody></table></div>\n'
        f'<h2>Over time</h2>\n<div class="figures">\n{"".join(_figures(seen))}</div>\n</main>\n'
    )
    return html.document(title, body, f"envcheck {__version__}")


def _figures(seen: WatchRecord) -> Iterator[str]:
    by_gpu = grouped(seen.gpus)
    for title, unit, read, factor in _GPU_CHARTS:
        lines = [
            PlotLine(gpu, thinned([(s.at, v * factor) for s in samples if (v := read(s)) is not None]))
            for gpu, samples in by_gpu.items()
        ]
        yield from _figure(title, unit, lines)
    yield from _figure("busy cores", "cores", [PlotLine("cores", thinned(_rates(seen.tree)))])
    memory = [PlotLine("", thinned([(s.at, s.rss / _GIB) for s in seen.tree]))]
    yield from _figure("memory of the processes", "GiB", memory)
    kinds = ("read", "written", "received", "sent")
    traffic = [PlotLine(kind, thinned([(s.at, getattr(s, kind) / 1e6) for s in seen.tree])) for kind in kinds]
    yield from _figure("disk and network since the start", "MB", traffic)


def _figure(title: str, unit: str, lines: Sequence[PlotLine]) -> Iterator[str]:
    drawn = [line for line in lines if len(line.points) > 1]
    if not drawn or max(value for line in drawn for _, value in line.points) <= 0:
        return
    yield html.figure(chart(f"{title}, {unit}", drawn, SECONDS, unit))


def _rates(tree: Sequence[TreeSample]) -> list[tuple[float, float]]:
    """Return the busy cores between each two samples."""
    return [(b.at, max(0.0, b.cpu - a.cpu) / (b.at - a.at)) for a, b in pairwise(tree) if b.at > a.at]


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return at most _MOST_POINTS points: the mean of each stretch, so that no peak is invented."""
    size = -(-len(points) // _MOST_POINTS)
    parts = [points[start : start + size] for start in range(0, len(points), max(size, 1))]
    return [(part[0][0], sum(value for _, value in part) / len(part)) for part in parts]
