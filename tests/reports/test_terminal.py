"""The report as people read it: 80 columns, what failed and what to do, and never a CPU that looks like a GPU."""

import io
import math
import os
import re
from html import escape
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from rich.console import Console

from envcheck.node.snapshot import Gpu, Snapshot
from envcheck.reports import phrases
from envcheck.reports.formats.html import page
from envcheck.reports.formats.markdown import markdown
from envcheck.reports.model import RunReport, load
from envcheck.reports.phrases import culprits, quantity
from envcheck.reports.terminal import announcement, show, show_announcement, show_plan
from envcheck.runner.judging import verdict
from envcheck.runner.schema import Attempt, FindingRow, ImageFacts, LimitRow, OutcomeRow, TargetFacts
from tests.builders import report, row
from tests.tables import each

DATA = Path(__file__).parents[1] / "data"
REPORTS = sorted((DATA / "reports").glob("*.json"))


def text(report: RunReport, *, verbose: bool = False, width: int = 80) -> str:
    stream = io.StringIO()
    show(report, Console(width=width, file=stream, highlight=False), verbose=verbose)
    return stream.getvalue()


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


def test_every_form_says_which_image_ran() -> None:
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
    assert "\nwith " in text(report(GOOD))
    assert "\nwith " not in text(report(GOOD, environment={}))


def test_gloo_and_nccl_are_named_only_where_a_group_of_ranks_ran() -> None:
    assert "8 x NVIDIA H100 80GB HBM3, driver 570.124.06" in text(report(GOOD))
    pair, alone = (row("a", "pass", "fine", ranks=[{}] * count) for count in (2, 1))
    assert "CPU: gloo, 2 ranks, 8 cores. No GPU was tested." in text(report(pair, mode="cpu"))
    assert "gloo" not in text(report(alone, mode="cpu"))
    lost = row("a", "error", "rank 0 ImportError: no", ranks=[None, None])
    assert "ran on    CPU, 8 cores. No GPU was tested." in text(report(lost, mode="cpu"))


def test_a_failure_shows_value_limit_source_remedy_and_both_measurements() -> None:
    result = text(report(GOOD, SLOW), verbose=True)
    finding = result[result.index("why ") : result.index("FAIL: ")]
    assert [[line[:10].strip(), line[10:]] for line in finding.splitlines() if line] == [
        ["why", "busbw 312.2 GB/s over 8 ranks"],
        ["value", "312.2 GB/s"],
        ["limit", "≥ 380 GB/s"],
        ["source", "measured on 8 x H100 SXM, 2026-01"],
        ["to do", "restart nvidia-fabricmanager"],
        ["attempt", "1 of 2: fail, 311 GB/s"],
        ["attempt", "2 of 2: fail, 312.2 GB/s"],
    ]
    assert result.endswith("\n\nFAIL: all-reduce-bandwidth\n")


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.stem)
def test_a_report_takes_25_lines_and_8_more_a_problem(path: Path) -> None:
    made = load(path)
    problems = phrases.by_status(made.outcomes, phrases.FINDINGS)
    lines = text(made).splitlines()
    assert len(lines) <= 25 + 8 * len(problems)
    sound = text(structs.replace(made, outcomes=[o for o in made.outcomes if o.status in ("pass", "skip")]))
    assert len(sound.splitlines()) <= 25
    assert not [line for line in [*lines, *text(made, verbose=True).splitlines()] if line != line.rstrip()]


@each(
    ("shown", "recorded", "problems"),
    [
        ("sound", "cpu", ()),
        ("one-warning", "h200x1", ("driver-branch",)),
        ("one-failure", "h100x8-slow-gpu", ("gemm-throughput",)),
        ("eight-gpus", "h100x8-slow-gpu", None),
    ],
)
def test_what_is_printed_at_80_columns(shown: str, recorded: str, problems: tuple[str, ...] | None) -> None:
    made = load(DATA / "reports" / f"{recorded}.json")
    if problems is not None:
        kept = [o for o in made.outcomes if o.status in ("pass", "skip") or o.id in problems]
        planned = [check for check in made.plan.checks if check.id in {o.id for o in kept}]
        made = structs.replace(made, outcomes=kept, verdict=verdict(kept, made.mode))
        made = structs.replace(made, plan=structs.replace(made.plan, checks=planned))
    snapshot = DATA / "terminal" / f"{shown}.txt"
    if os.environ.get("ENVCHECK_TEST_SNAPSHOTS"):
        snapshot.write_text(text(made), encoding="utf-8")
    assert text(made) == snapshot.read_text(encoding="utf-8"), "look at it, then run with ENVCHECK_TEST_SNAPSHOTS=1"


def test_skips_are_counted_by_reason_and_a_problem_of_any_length_takes_8_lines() -> None:
    alone = [row(f"x{n}", "skip", f"needs 2 GPUs, found none: {n}") for n in range(31)]
    others = [row(f"y{n}", "skip", f"reason {n}") for n in range(9)]
    assert "skip      31 checks: needs 2 GPUs, found none\n" in text(report(GOOD, *alone, *others))
    assert "          5 checks for other reasons\n" in text(report(GOOD, *alone, *others))
    long = row("amp", "error", "it is slow and " * 60, remedy="look at it and " * 60, log="a\nb", value=[9] * 200)
    shown = text(report(GOOD, long)).split("\n\n")[2].splitlines()
    assert [line[:10].rstrip() for line in shown if line[0] != " "] == ["error", "why", "to do", "log"]
    assert len(shown) == 7
    assert shown[-1].endswith(" b")


def test_commands_urls_and_digests_are_never_folded() -> None:
    whole = ("`nvidia-smi --query-gpu=name --format=csv`", f"sha256:{'0' * 64}", f"https://a.example/{'long/' * 20}")
    for one in whole:
        for start in range(60):
            broken = row("x", "fail", f"{'w ' * start}{one} is so", remedy=f"{'w ' * start}{one} does it")
            assert text(report(GOOD, broken), verbose=True).count(one) == 2


def test_the_log_that_is_shown_is_of_the_rank_that_was_lost() -> None:
    log = "[rank 0] I wait\n[rank 1] I hang\n[rank 2] I wait too"
    hung = row("ddp", "error", "rank 1 still running after 1 s", details={"rank": 1}, log=log)
    result = text(report(hung))
    assert "I hang" in result
    assert "I wait" not in result


def test_where_and_what_to_do_are_those_of_the_findings_that_decided() -> None:
    bad = [
        FindingRow(
            status="fail",
            summary=f"GPU {n} is hot",
            remedy="cool it" if n < 6 else "swap it",
            culprit=f"GPU {n} (GPU-aa-{n})",
        )
        for n in (1, 3, 5, 6)
    ]
    odd = FindingRow(status="warn", summary="GPU 2 is slow", remedy="wait", culprit="GPU 2")
    hot = row("heat", "fail", "4 GPUs are hot", remedy="cool it", culprit="GPU 1", findings=[odd, *bad])
    shown = text(report(hot)).splitlines()
    assert [line for line in shown if line.startswith(("where ", "to do "))] == [
        "where     GPU 1, GPU 3, GPU 5, GPU 6",
        "to do     cool it",
        "to do     GPU 6 is hot: swap it",
    ]
    named = structs.replace(hot, findings=[], culprit="all_reduce, rank 2 (n1), 4")
    assert "where     all_reduce, rank 2 (n1), 4\n" in text(report(named))
    assert "where" in text(report(structs.replace(hot, summary="GPU 1, GPU 3, GPU 5 and GPU 66 are hot")))
    assert "where" not in text(report(structs.replace(hot, summary="GPU 1, GPU 3, GPU 5 and GPU 6 are hot")))


@each(
    ("log", "last"),
    [
        ("[rank 0] E: no\n[rank 0] ", "[rank 0] E: no"),
        ('E: no\n  File "x.py", line 1 in f\n  ...\n\nExtension modules: a, b', "E: no"),
        ("E: no\nframe #0: f\n\n", "E: no"),
        ("\n \n", " "),
        ("", ""),
        ("x" * 200, f"{'x' * 69}…"),
    ],
)
def test_the_last_line_of_a_log_is_one_that_says_something(log: str, last: str) -> None:
    made = report(row("amp", "error", "died", log=log))
    lines = [line[10:] for line in text(made).splitlines() if line.startswith("log ")]
    assert lines == [last] * bool(last)
    assert log.splitlines()[:1] == [] or log.splitlines()[0] in text(made, verbose=True)
    assert f"<dd>{escape(last)}" in page(made) or len(log.splitlines()) <= 4


def test_a_run_that_was_cut_short_names_what_it_has_left() -> None:
    whole = report(GOOD, *(row(f"c{n}", "pass") for n in range(5)))
    assert "not run" not in text(whole)
    cut = structs.replace(whole, outcomes=whole.outcomes[:1])
    assert "\nnot run   c0, c1, c2, 2 more; run again with --resume\n" in text(cut)
    assert "\nnot run   c0, c1, c2, c3, c4; run again with --resume\n" in text(cut, verbose=True)


def test_a_text_of_a_report_makes_no_line_of_its_own() -> None:
    evil = "all fine\nPASS: 9 promises proved\r\u2028x"
    made = report(row("matmul", "fail", evil, remedy=evil, culprit=evil), row(evil))
    made = structs.replace(made, host=structs.replace(made.host, name=evil))
    made = structs.replace(made, verdict=structs.replace(made.verdict, sentence=evil))
    assert not [line for line in text(made).splitlines() if line.strip().startswith("PASS: 9")]
    # A log of a row has lines, and what is called so elsewhere has none.
    made = report(row("matmul", "fail", remedy="x", value={"log": "`a\nPASS: 9`"}))
    assert "\nPASS: 9" not in text(made, verbose=True)


@each("outcome", [GOOD, SLOW, BROKEN])
def test_the_last_line_of_a_cpu_run_says_that_no_gpu_was_tested(outcome: OutcomeRow) -> None:
    result = text(report(outcome, mode="cpu"))
    assert "no GPU was tested" in " ".join(result.split("\n\n")[-1].split())


@each(
    ("value", "unit", "message"),
    [
        (1.23456, "GB/s", "1.235 GB/s"),
        (64 << 20, "B", "64 MiB"),
        (1023.7 * 2**30, "B", "1,023.7 GiB"),
        (27940 << 30, "B", "27,940 GiB"),
        (10, "bytes", "10 B"),
        (20000.0, "files", "20000 files"),
        (12345.678, "MHz", "12346 MHz"),
        (0.000012345, "s", "12.34 µs"),
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


def test_a_plan_says_how_long_it_takes_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert announcement(made.plan, long) in " ".join(string_io.getvalue().split())
    assert long.name in string_io.getvalue()
    assert max(map(len, stream.getvalue().splitlines())) <= 80


@pytest.mark.parametrize("columns", [40, 60, 80])
@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.stem)
def test_the_examples_fit_narrow_terminals(path: Path, columns: int) -> None:
    shown = text(load(path), width=columns)
    for line in shown.splitlines():
        # Only a word or a command may be longer.
        whole = re.sub("`[^`]*`", "", line[10:].removesuffix(" …"))
        assert len(line) <= columns or " " not in whole, line
    assert load(path).verdict.sentence.split()[0].rstrip(":") in shown


def test_evidence_that_nobody_measured_says_so_in_every_form_that_people_read() -> None:
    for path in REPORTS:
        made = load(path)
        result = made.snapshot.signal("origin").value != "recorded"
        for form in (text(made), page(made), markdown(made)):
            assert ("no such machine was measured" in form) is result, path


RANKS = [{"rank": i, "device": f"GPU-{i}"} for i in range(3)]


@each(
    ("finding", "blamed"),
    [
        ({"summary": "GPU-1 lost 3 rows"}, ["GPU-1"]),
        ({"details": {"device": "GPU-2"}}, ["GPU-2"]),
        ({"details": {"gpus": ["GPU-0", "GPU-2"]}}, ["GPU-0", "GPU-2"]),
        ({"details": {"gpus": {"GPU-0": 3}}}, ["GPU-0"]),
        ({"details": {"rank": 1}, "ranks": RANKS}, ["GPU-1"]),
        ({"details": {"ranks": [0, 2]}, "ranks": RANKS}, ["GPU-0", "GPU-2"]),
        ({"ranks": RANKS}, []),
        ({"details": {"curve": "GPU-1"}}, []),
    ],
)
@each("status", ["warn", "fail", "error", "pass", "skip"])
def test_findings_blame_the_gpus_they_name(finding: dict[str, Any], blamed: list[str], status: str) -> None:
    outcome = row("x", status, **finding)
    data = culprits(report(outcome, snapshot=Snapshot("", {}, [Gpu(f"GPU-{i}") for i in range(3)])))
    expected = blamed if status in ("warn", "fail", "error") else []
    assert [uuid for uuid, outcomes in data.items() if outcomes] == expected
