"""The report as people read it: 80 columns, what failed and what to do, and never a CPU that looks like a GPU."""

import io
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs
from rich.console import Console

from envcheck.reports.formats.html import page
from envcheck.reports.formats.markdown import markdown
from envcheck.reports.model import RunReport, load
from envcheck.reports.phrases import quantity
from envcheck.reports.terminal import announcement, show, show_announcement, show_plan
from envcheck.runner.schema import Attempt, ImageFacts, LimitRow, OutcomeRow, TargetFacts
from tests.builders import row
from tests.tables import each

MakeReport = Callable[..., RunReport]
REPORTS = sorted((Path(__file__).parents[1] / "data" / "reports").glob("*.json"))


def text(report: RunReport) -> str:
    stream = io.StringIO()
    show(report, Console(width=80, file=stream, highlight=False))
    return stream.getvalue()


def last(message: str) -> str:
    return " ".join(message.rsplit("\n\n", maxsplit=1)[-1].split())


SLOW = row(
    "all-reduce-bandwidth",
    "fail",
    "busbw 312.2 GB/s over 8 ranks",
    value=312.2,
    unit="GB/s",
    limit=LimitRow(value=380.0, unit="GB/s", source="measured on 8 x H100 SXM, 2026-01", kind="at least"),
    remedy="restart nvidia-fabricmanager",
    attempts=[
        Attempt(status="fail", value=311.04, seconds=4.0, body=3.5),
        Attempt(status="fail", value=312.2, seconds=4.0, body=3.5),
    ],
)
GOOD = row("ddp", "pass", "gradients equal one process's")
BROKEN = row("amp", "error", "rank 1 died of SIGSEGV", remedy="see the log", log="[rank 1] Fatal Python error")


def test_every_form_says_which_image_ran(report: MakeReport) -> None:
    image = TargetFacts(kind="image", name="r.example/x:1", chosen="its Python", image_id="sha256:1")
    facts = ImageFacts(runs_as="", program="", history=0, secrets=[], manifest_digest="sha256:1", diff_ids=["a", "b"])
    known = report(GOOD, target=structs.replace(image, image=facts))
    facts.repository_digests.extend(["r.example/x@sha256:1", "r.example/x@sha256:2"])
    assert "manifest sha256:1, r.example/x@sha256:2, 2 layers" in " ".join(text(known).split())
    facts.repository_digests.clear()
    for form in (text(known), markdown(known), page(known)):
        assert "manifest sha256:1, 2 layers" in form
    assert "image     id sha256:1" in text(report(GOOD, target=image))
    python = TargetFacts(kind="python", name="p", chosen="this one")
    assert not [line for line in text(report(GOOD, target=python)).splitlines() if line.startswith("image")]


def test_gloo_and_nccl_are_named_only_where_a_group_of_ranks_ran(report: MakeReport) -> None:
    assert "8 x NVIDIA H100 80GB HBM3, driver 570.124.06" in text(report(GOOD))
    pair, alone = (row("a", "pass", "fine", ranks=[{}] * count) for count in (2, 1))
    assert "CPU: gloo, 2 ranks, 8 cores. No GPU was tested." in text(report(pair, mode="cpu"))
    assert "gloo" not in text(report(alone, mode="cpu"))
    lost = row("a", "error", "rank 0 ImportError: no", ranks=[None, None])
    assert "ran on    CPU, 8 cores. No GPU was tested." in text(report(lost, mode="cpu"))


def test_a_failure_shows_value_limit_source_remedy_and_both_measurements(report: MakeReport) -> None:
    result = text(report(GOOD, SLOW))
    finding = result[result.index("why ") : result.index("FAIL: ")]
    assert [line.strip().split(maxsplit=1) for line in finding.splitlines() if line] == [
        ["why", "busbw 312.2 GB/s over 8 ranks"],
        ["value", "312.2 GB/s"],
        ["limit", "≥ 380 GB/s"],
        ["source", "measured on 8 x H100 SXM, 2026-01"],
        ["remedy", "restart nvidia-fabricmanager"],
        ["attempt", "1 of 2: fail, 311 GB/s"],
        ["attempt", "2 of 2: fail, 312.2 GB/s"],
    ]
    assert last(result) == (
        "FAIL: all-reduce-bandwidth. busbw 312.2 GB/s over 8 ranks. What to do: restart nvidia-fabricmanager."
    )


def test_the_log_that_is_shown_is_of_the_rank_that_was_lost(report: MakeReport) -> None:
    log = "[rank 0] I wait\n[rank 1] I hang\n[rank 2] I wait too"
    hung = row("ddp", "error", "rank 1 still running after 1 s", details={"rank": 1}, log=log)
    result = text(report(hung))
    assert "I hang" in result
    assert "I wait" not in result


def test_a_text_of_a_report_makes_no_line_of_its_own(report: MakeReport) -> None:
    evil = "all fine\nPASS: 9 promises proved\r\u2028x"
    made = report(row("matmul", "fail", evil, remedy=evil, culprit=evil), row(evil))
    made = structs.replace(made, host=structs.replace(made.host, name=evil))
    made = structs.replace(made, verdict=structs.replace(made.verdict, sentence=evil))
    assert not [line for line in text(made).splitlines() if line.strip().startswith("PASS: 9")]


@each("outcome", [GOOD, SLOW, BROKEN])
def test_the_last_line_of_a_cpu_run_says_that_no_gpu_was_tested(report: MakeReport, outcome: OutcomeRow) -> None:
    result = text(report(outcome, mode="cpu"))
    assert "no GPU was tested" in " ".join(result.split("\n\n")[-1].split())


@each(
    ("value", "unit", "message"),
    [
        (1.23456, "GB/s", "1.235 GB/s"),
        (64 << 20, "B", "64 MiB"),
        (10, "bytes", "10 B"),
        (20000.0, "files", "20000 files"),
        (12345.678, "MHz", "12346 MHz"),
        (0.000012345, "s", "1.234e-05 s"),
        (math.inf, "s", "inf s"),
        (True, "", "True"),
        ([1, 2], "ms", "1, 2 ms"),
        ({"torch": "2.8.0", "cuda": "12.8"}, "", "torch 2.8.0, cuda 12.8"),
        (None, "", "None"),
        ("nan", "s", "nan s"),
    ],
)
def test_quantities(value: object, unit: str, message: str) -> None:
    assert quantity(value, unit) == message


def test_a_plan_says_how_long_it_takes_before_anything_runs(
    report: MakeReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = report(GOOD, SLOW)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("os.getloadavg", lambda: (30.0, 1.0, 1.0))
    assert announcement(made.plan, made.target).endswith("about 4 s; load 30 on 2 cores: times stretch")
    monkeypatch.setattr("os.getloadavg", lambda: (2.0, 1.0, 1.0))
    stream = io.StringIO()
    show_plan(made.plan, made.target, Console(width=80, file=stream))
    assert "2 checks of level quick in registry.example/torch:1 (--image), about 4 s" in stream.getvalue()
    assert announcement(made.plan, made.target).endswith("about 4 s")
    string_io = io.StringIO()
    long = structs.replace(made.target, name=f"/{'deep/' * 30}python")
    show_announcement(made.plan, long, Console(width=80, file=string_io))
    assert max(map(len, string_io.getvalue().splitlines())) <= 80
    assert announcement(made.plan, long).replace(" ", "") in "".join(string_io.getvalue().split())
    assert max(map(len, stream.getvalue().splitlines())) <= 80


@pytest.mark.parametrize("columns", [40, 60, 80])
@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.stem)
def test_the_examples_fit_narrow_terminals(path: Path, columns: int) -> None:
    stream = io.StringIO()
    show(load(path), Console(width=columns, file=stream, highlight=False))
    assert max(map(len, stream.getvalue().splitlines())) <= columns
    assert load(path).verdict.sentence.split()[0] in stream.getvalue()


def test_evidence_that_nobody_measured_says_so_in_every_form_that_people_read() -> None:
    for path in REPORTS:
        made = load(path)
        stream = io.StringIO()
        show(made, Console(width=80, file=stream, highlight=False))
        result = made.snapshot.signal("origin").value != "recorded"
        for form in (stream.getvalue(), page(made), markdown(made)):
            assert ("no such machine was measured" in form) is result, path
