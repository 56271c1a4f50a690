"""Every form of a report shows each measurement and each finding; none hides what was no pass."""

import io

import pytest
from msgspec import structs
from rich.console import Console

from envcheck.reports import formats
from envcheck.reports.model import RunReport, encode
from envcheck.reports.terminal import show
from envcheck.runner.schema import Attempt, FindingRow, LimitRow, OutcomeRow
from tests.builders import report, row
from tests.tables import each

SLOW = Attempt(status="fail", value=99.0, unit="GB/s", summary="slow link", seconds=1.0, body=1.0, remeasure=True)
FINE = structs.replace(SLOW, status="pass", value=400.0, summary="as fast as it is", remeasure=False, shown=True)
WRONG = structs.replace(FINE, status="fail", value=3.0, summary="three elements differ", code="data.wrong")
LIMIT = LimitRow(value=300.0, unit="GB/s", source="somebody who measured it", kind="at least")
FINDINGS = [
    FindingRow(status="fail", summary="ECC is broken", code="ecc.uncorrected", culprit="GPU 3", remedy="replace it"),
    FindingRow(
        status="warn",
        summary="low",
        code="speed.low",
        culprit="GPU 5",
        value=9.5,
        unit="GB/s",
        limit=LIMIT,
        remedy="wait",
    ),
]
# Formats for programs that have a field for the outcome alone; every other format shows each attempt and each finding.
ONE_FIELD = {"prometheus"}
FORMS = ["terminal", "json", *(name for name in formats.names() if name not in ONE_FIELD)]


def speed(status: str, summary: str, **more: object) -> OutcomeRow:
    return row("speed", status, summary, unit="GB/s", **more)


TAKEN_BACK = speed("pass", "as fast as it is", attempts=[SLOW, FINE])
FINAL = speed("fail", "three elements differ", remedy="out", code="data.wrong", attempts=[SLOW, WRONG])
SICK = speed("fail", "ECC is broken", remedy="replace it", code="ecc.uncorrected", culprit="GPU 3", findings=FINDINGS)
REPEATED = speed(
    "fail",
    "three elements differ",
    remedy="out",
    attempts=[structs.replace(WRONG, round=2), *(structs.replace(FINE, shown=False, round=n) for n in (1, 3))],
)


def formatted(report: RunReport, form: str) -> str:
    """Return a report in one of its forms, without the line breaks of a narrow terminal."""
    if form == "json":
        return encode(report).decode()
    if form != "terminal":
        return formats.named(form).render(report).replace("\\", "")
    stream = io.StringIO()
    show(report, Console(width=80, file=stream, highlight=False), verbose=True)
    return " ".join(stream.getvalue().split())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("outcome", [TAKEN_BACK, FINAL, REPEATED], ids=["taken-back", "final", "repeated"])
def test_each_attempt_that_was_no_pass_is_in_every_form(outcome: OutcomeRow, form: str) -> None:
    text = formatted(report(outcome), form)
    for attempt in outcome.attempts:
        assert attempt.status == "pass" or attempt.summary in text


def test_prometheus_counts_attempts_and_findings() -> None:
    text = formats.named("prometheus").render(report(FINAL))
    assert 'envcheck_check_attempts{check="speed",status="fail",code="data.wrong"} 1.0' in text
    assert 'envcheck_check_attempts{check="speed",status="fail",code=""} 1.0' in text
    assert 'envcheck_check_attempt_value_bytes_per_second{check="speed",attempt="1",status="fail"} 99' in text
    assert 'envcheck_check_findings{check="speed",status="fail",code="data.wrong",culprit=""} 1.0' in text
    actual = formats.named("prometheus").render(report(SICK))
    for finding in FINDINGS:
        assert f'status="{finding.status}",code="{finding.code}",culprit="{finding.culprit}"}} 1.0' in actual
    assert "envcheck_check_attempts" not in formats.named("prometheus").render(report(speed("pass", "fine")))


@each("form", FORMS)
def test_each_finding_is_in_every_form(form: str) -> None:
    text = formatted(report(SICK), form)
    for finding in FINDINGS:
        for part in (finding.summary, finding.code, finding.culprit, finding.remedy):
            assert part in text
