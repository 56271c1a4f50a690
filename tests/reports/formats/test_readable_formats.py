"""Whatever a report holds, every form of it can be read back by that form's own readers."""

import re
from typing import Any, Final
from xml.etree import ElementTree as ET

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envcheck.node.snapshot import Gpu, Signal, Snapshot
from envcheck.reports import formats
from envcheck.reports.compare import compare, lines
from envcheck.reports.model import HostFacts, RunReport, rejudge
from envcheck.reports.redact import RedactError, redact
from envcheck.runner.launcher import Place
from envcheck.runner.outcomes import plain
from envcheck.runner.schema import Attempt, LimitRow, OutcomeRow, Plan, PlannedCheck, TargetFacts
from tests.builders import report
from tests.reports.formats.test_prometheus import samples
from tests.reports.test_page import Page

TAGS: Final = re.findall(
    r"\w+",
    "html head meta title style body header h1 h2 h3 p span dl dt dd section table thead tr th td br div "
    "main tbody ul li i figure figcaption svg line text polyline circle rect details summary pre footer",
)
TEXT = st.text(max_size=30) | st.sampled_from(
    ["<b>&\"'", "\x1b[31m\x00", "| a |\n`", "]]>", "\ufffe", "</script>", "--"]
)
WORD = st.sampled_from(["a", "b-c", "matmul", "all-reduce-bandwidth"]) | st.text(
    "abc-<\"'&|`\n", min_size=1, max_size=9
)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
).map(plain)
NUMBER = st.floats() | st.integers() | st.just(10**400) | st.none()
CURVE = st.lists(
    st.fixed_dictionaries(
        {"bytes": NUMBER | st.sampled_from([1 << 20, 1 << 30])},
        optional={"busbw": NUMBER, "algbw": NUMBER, "seconds": NUMBER},
    ),
    max_size=4,
).map(plain)
MATRIX = st.lists(st.lists(NUMBER, max_size=3), max_size=3).map(plain)
DETAILS = st.dictionaries(st.sampled_from(["curve", "matrix", "gpu", "rank", "x<"]), CURVE | MATRIX | JSON, max_size=3)
RANKS = st.lists(
    st.fixed_dictionaries({"rank": st.integers(0, 3)}, optional={"device": TEXT, "curve": CURVE, "x": JSON}) | JSON,
    max_size=3,
)
STATUSES: Any = st.sampled_from(["pass", "warn", "fail", "skip", "error"])
LIMIT = st.builds(
    LimitRow, value=NUMBER.map(plain), unit=TEXT, source=TEXT, kind=st.sampled_from(["at least", "at most", "x"])
)
SIGNAL = st.builds(Signal, JSON, TEXT, st.sampled_from(["W", "B", "MHz", None, "x"]), TEXT)
SIGNALS = st.dictionaries(st.sampled_from(["name", "index", "power_draw", "power.draw", "temperature"]) | WORD, SIGNAL)
PLANNED = st.builds(
    PlannedCheck,
    id=WORD,
    kind=st.just("env"),
    level=WORD,
    promise=TEXT,
    seconds=st.just(1.0),
    timeout=st.just(1.0),
    gpus=st.just(0),
    ranks=st.just(1),
    performance=st.booleans(),
)
OUTCOME = st.builds(
    OutcomeRow,
    id=WORD,
    kind=st.sampled_from(["node", "env"]),
    status=STATUSES,
    summary=TEXT,
    value=JSON,
    unit=st.sampled_from(["GB/s", "B", "s", ""]) | TEXT,
    limit=st.none() | LIMIT,
    remedy=TEXT,
    details=DETAILS,
    attempts=st.lists(
        st.builds(Attempt, status=STATUSES, value=JSON, seconds=st.floats(0, 9), body=st.just(0.0)), max_size=2
    ),
    ranks=RANKS,
    log=TEXT,
)
MOMENT = st.sampled_from(["", "2026-01-02T03:04:05+00:00", "2026-01-02T03:04:05", "yesterday"])


def _report(outcomes: list[OutcomeRow], planned: list[PlannedCheck], **facts: Any) -> RunReport:
    image = TargetFacts(kind="image", name="<img>", chosen="--image")
    return report(*outcomes, target=image, plan=Plan(level="quick", checks=planned, nproc=2), **facts)


REPORTS = st.builds(
    _report,
    outcomes=st.lists(OUTCOME, max_size=4, unique_by=lambda o: o.id),
    planned=st.lists(PLANNED, max_size=3, unique_by=lambda p: p.id),
    started=MOMENT,
    ended=MOMENT,
    host=st.builds(
        lambda name: HostFacts(name=name, system="Linux", kernel="6", arch="x86_64", cpus=2, place=Place()), TEXT
    ),
    mode=st.sampled_from(["gpu", "cpu", "unknown"]),
    environment=st.dictionaries(st.sampled_from(["torch", "cuda", "python", "error", "devices"]), JSON),
    promises=st.dictionaries(st.sampled_from(["cell", "torch"]), TEXT),
    snapshot=st.builds(
        Snapshot, TEXT, SIGNALS, st.lists(st.builds(Gpu, st.sampled_from(["GPU-1", "GPU-<2>"]), SIGNALS), max_size=2)
    ),
)


def xml(text: str) -> None:
    ET.fromstring(text)  # noqa: S314 (our own)


def exposition(text: str) -> None:
    """Read every line as Prometheus does, and no series twice."""
    assert text.endswith("\n")
    samples(text)


def hypertext(text: str) -> None:
    """Read it as HTML: only our own elements, each closed."""
    assert {tag for tag, _ in Page(text).tags} <= {*TAGS}


def summary(text: str) -> None:
    """Read the table and what could end it or a heading: every row has the columns of the first."""
    lines = text.split("\n")
    rows = [line for line in lines if line.startswith("| ")]
    assert rows
    assert {len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) for row in rows} == {6}
    outside = [line for line in lines if not line.startswith("      ")]
    assert not any(re.search(r"(?<!\\)<(?!br>)", line.replace("\\\\", "")) for line in outside)


READERS = {"junit": xml, "prometheus": exposition, "html": hypertext, "markdown": summary}


def test_every_form_has_a_reader_here() -> None:
    assert set(READERS) == set(formats.names()), "add a function that reads the format back to READERS in this file"


@pytest.mark.parametrize("form", READERS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(report=REPORTS)
def test_a_form_is_read_back_whatever_the_report_holds(form: str, report: RunReport) -> None:
    READERS[form](formats.named(form).render(report))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(before=REPORTS, after=REPORTS)
def test_any_two_reports_are_compared(before: RunReport, after: RunReport) -> None:
    assert compare(before, before).changes == []
    actual = compare(before, after)
    assert actual.exit_code in (0, 1, 3)
    assert max(map(len, lines(actual))) <= 80


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(report=REPORTS)
def test_any_report_is_judged_again_and_redacted_to_the_same(report: RunReport) -> None:
    repeated = rejudge(report).report
    try:
        redacted = redact(report)
    except RedactError:
        return
    assert [(o.id, o.status) for o in rejudge(redacted).report.outcomes] == [
        (o.id, o.status) for o in repeated.outcomes
    ]
