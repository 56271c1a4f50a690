"""What is drawn is what was measured: curves of each collective, times over ranks, pairs of GPUs, samples over time."""

import re
from typing import Any

from envcheck.reports.measurements import COLOURS, Figure, figures
from envcheck.runner.schema import LimitRow, OutcomeRow
from tests.builders import row
from tests.tables import each

SIZES = [1 << 20, 1 << 26, 1 << 30]
NAMES = ["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "send/recv"]


def outcome(**more: Any) -> OutcomeRow:
    return row("x", **{"unit": "GB/s", **more})


def one(drawn: OutcomeRow, word: str) -> Figure:
    [figure] = [figure for figure in figures(drawn) if word in figure.caption]
    return figure


def strengths(figure: Figure) -> list[float]:
    return [float(lag) for lag in re.findall(r'style="--lag:([\d.]+)"', figure.drawing)]


def test_every_collective_has_its_curve_and_its_name() -> None:
    curves = {name: [{"bytes": size, "busbw": 10.0 + i} for size in SIZES] for i, name in enumerate(NAMES)}
    limit = LimitRow(value=9.0, unit="GB/s", source="a test", kind="at least")
    figure = one(outcome(details={"curves": curves}, limit=limit), "bandwidth")
    assert [name for _, name in figure.legend] == NAMES
    assert len(set(re.findall(r'<polyline class="([^"]+)"', figure.drawing))) == len(NAMES) <= COLOURS
    assert "limit 9 GB/s" in figure.drawing
    assert "<title>send/recv 1 GiB: 15 GB/s</title>" in figure.drawing


@each(("unit", "weak"), [("GB/s", 10.0), ("us", 80.0)])
def test_the_weak_pair_stands_out_in_bandwidth_and_in_latency(unit: str, weak: float) -> None:
    square = [[None, 20.0, 20.0], [weak, None, 20.0], [20.0, 20.0, None]]
    figure = one(outcome(details={"matrix": square}, unit=unit), "GPU to GPU")
    marked = [number for number, share in enumerate(strengths(figure)) if share > 0]
    assert marked == [2]


def test_samples_over_time_show_the_blamed_rank_over_the_others() -> None:
    samples = [{"at": float(t), "clock": 1700, "power": 690.0, "temperature": 60} for t in range(30)]
    ranks = [
        {"rank": r, "points": [{"at": float(t), "tflops": 700.0} for t in range(30)], "load": {"samples": samples}}
        for r in range(4)
    ]
    drawn = outcome(ranks=ranks, details={"rank": 3}, unit="of its speed")
    captions = [figure.caption for figure in figures(drawn)]
    assert captions == ["x: speed over time", "x: clock over time", "x: power over time", "x: temperature over time"]
    speed = one(drawn, "speed")
    assert list(speed.legend) == [("hot", "rank 3"), ("calm", "3 others")]
    assert re.findall(r'<polyline class="curve (\w+)"', speed.drawing) == ["calm"] * 3 + ["hot"]


@each(
    "details",
    [
        {"curve": [{"bytes": 1 << 20, "busbw": 1.0}]},
        {"curve": [{"bytes": 0, "busbw": 1.0}, {"bytes": -1, "busbw": 2.0}]},
        {"matrix": [[None, 0], [0, None]]},
        {"matrix": [[1, 2], [3]]},
        {"matrix": 7, "curve": {"bytes": 1}, "curves": [1], "latency": [1]},
        {"curves": {"all-reduce": None}, "latency": {"all-reduce": [None, {"bytes": "8"}]}},
    ],
)
def test_what_has_no_shape_is_not_drawn(details: dict[str, Any]) -> None:
    assert not list(figures(outcome(details=details)))
