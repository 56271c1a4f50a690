"""The page as a reader opens it: verdict first, nothing fetched, nothing of a log taken for markup."""

import re
from html.parser import HTMLParser
from typing import Any

from msgspec import structs

from envcheck.node.snapshot import Gpu, Signal, Snapshot
from envcheck.reports.formats.html import page
from envcheck.reports.measurements import COLOURS, Figure, figures
from envcheck.runner.schema import LimitRow, OutcomeRow
from tests import builders
from tests.builders import report, row
from tests.tables import each

VOID = {"meta", "br"}


class Page(HTMLParser):
    """A page taken apart: its tags with attributes, the text of each, and that all that is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.opened: list[str] = []
        self.feed(text)
        self.close()
        assert self.opened == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.opened.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.opened.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.opened[-1] if self.opened else "", data))

    def all(self, tag: str) -> list[str]:
        return [text for at, text in self.texts if at == tag and text.strip()]


def curve(*rates: float) -> list[dict[str, float]]:
    return [{"bytes": 1 << (20 + 2 * i), "busbw": rate} for i, rate in enumerate(rates)]


SLOW = structs.replace(builders.SLOW, details={"curve": curve(10.0, 100.0, 312.5)})


def test_the_verdict_comes_first_then_what_is_wrong() -> None:
    read = Page(page(report(row("good", "pass"), SLOW, row("lost", "error", remedy="look", log="died"))))
    assert read.all("h1") == ["FAIL: nccl"]
    assert read.all("h2")[:2] == ["What is wrong, and what to do", "Checks"]
    shown = read.all("dd")
    for text in ("312.5 GB/s", "≥ 380 GB/s", "a data sheet", "restart it", "died"):
        assert text in shown


def test_what_was_only_reported_and_long_logs_are_folded_and_digests_are_short() -> None:
    digest, uuid = f"sha256:{'ab' * 32}", "GPU-0000000a-1111-4000-8000-00000000000a"
    only = structs.replace(SLOW, id="seen", status="pass", limit=None, summary=f"of {digest} on {uuid}")
    lost = row("lost", "error", remedy="look", log="\n".join(f"line {n}" for n in range(9)))
    read = page(report(SLOW, only, lost))
    measured = read[read.index("<h2>Measured") :]
    fold = measured.index("measured, and not judged")
    assert measured.index("nccl: bus bandwidth") < fold < measured.index("seen: bus bandwidth")
    for name in (digest, uuid):
        assert f'<span class="digest" title="{name}">{name}</span>' in read
    assert re.search(r"\.digest \{[^}]*user-select: all", read), "no script copies it: a click selects all of it"
    assert "<dd>line 8<details><summary>9 lines</summary><pre>line 0\n" in read
    quick = structs.replace(
        SLOW, value=0.0004, unit="s", limit=LimitRow(value=0.5, unit="s", source="", kind="at most")
    )
    assert "400 µs</td>" in page(report(quick))
    assert "≤ 0.5 s</td>" in page(report(quick))
    assert "≤ 0.5</td>" in page(report(structs.replace(quick, value=0.4)))
    many = [{"rank": rank, "values": {"copy": 35184.4 - rank}} for rank in range(16)]
    table = page(report(structs.replace(SLOW, ranks=many), host=structs.replace(report().host, load=1.25)))
    assert ">35184</td>" in table
    assert not re.search(r"\d\.\d+e\+", table[: table.index("<h2>Evidence")])
    assert "8 cores, load 1.2 at the start" in table


@each("mode", ["gpu", "cpu", "unknown"])
def test_nothing_is_fetched_or_run(mode: str) -> None:
    text = page(report(SLOW, mode=mode))
    names = {tag for tag, _ in Page(text).tags}
    assert not names & {"script", "link", "img", "iframe", "object", "embed", "base", "form", "use", "image"}
    assert not re.search(r"url\(|@import|\bsrc=|\bhref=", text)
    assert "default-src 'none'" in text


@each(
    "evil",
    ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</style><b>", "&lt;b&gt;", "</pre></details>"],
)
def test_a_log_cannot_become_markup(evil: str) -> None:
    hostile = row(
        "x",
        "error",
        summary=evil,
        remedy=evil,
        log=evil,
        details={evil: [evil], "gpu": evil, "curve": curve(1, 2), f"{evil} c": curve(1, 2)},
        ranks=[{"rank": i, "device": evil, "curve": [{"bytes": 1 << 20, "seconds": 1.0}]} for i in range(2)],
    )
    gpu = Gpu(evil, {"name": Signal(evil), "ecc_mode": Signal(reason=evil)})
    read = Page(page(report(hostile, snapshot=Snapshot("", {"x": Signal(evil)}, [gpu]), environment={"torch": evil})))
    assert {"script", "img", "b"}.isdisjoint(tag for tag, _ in read.tags)
    assert any(evil in text for text in read.all("dd"))


def test_a_gpu_that_a_finding_names_is_marked_in_its_row() -> None:
    gpus = [Gpu(f"GPU-{i}", {"temperature": Signal(30 + i, unit="C"), "index": Signal(i)}) for i in (0, 1)]
    bad = row("ecc", "fail", remedy="swap it", summary="GPU-1 lost a bit")
    rows = re.findall(r"<tr><td>(\d)</td>.*?</tr>", page(report(bad, snapshot=Snapshot("", {}, gpus))))
    assert rows == ["0", "1"]
    text = page(report(bad, snapshot=Snapshot("", {}, gpus)))
    assert '<tr><td>1</td><td class="status fail">ecc</td>' in text
    assert "<tr><td>0</td><td>none</td>" in text


def test_what_could_not_be_read_off_a_gpu_says_why() -> None:
    gpus = [Gpu("GPU-1", {"temperature": Signal(reason="not permitted", why="failed")})]
    assert '<td title="not permitted">?</td>' in page(report(SLOW, snapshot=Snapshot("", {}, gpus)))


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
