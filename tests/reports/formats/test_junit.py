"""JUnit as CI viewers read it: valid by Jenkins' schema (junit-10.xsd) and by Ant's (JUnit.xsd) at once."""

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from envcheck.reports.formats.junit import junit
from envcheck.reports.model import RunReport, load
from envcheck.runner.judging import verdict
from envcheck.runner.schema import Attempt, LimitRow, OutcomeRow, Plan
from tests.builders import planned, report, row
from tests.tables import each

REPORTS = sorted((Path(__file__).parents[2] / "data" / "reports").glob("*.json"))

# What both schemas allow, and what either asks for. The children of each element, in order, as a pattern.
CHILDREN = {
    "testsuites": "(testsuite )*",
    "testsuite": "properties (testcase )*system-out system-err ",
    "properties": "(property )*",
    "testcase": "(skipped |error |failure )?",
}
REQUIRED = {
    "testsuite": {"name", "id", "package", "hostname", "timestamp", "tests", "failures", "errors", "time"},
    "testcase": {"classname", "name", "time"},
    "property": {"name", "value"},
    "failure": {"type"},
    "error": {"type"},
}
ALLOWED = {**REQUIRED, "testsuite": REQUIRED["testsuite"] | {"skipped"}, "skipped": {"message"}}
ALLOWED |= {name: {"message", "type"} for name in ("failure", "error")}
# The types of both: SUREFIRE_TIME and xs:decimal, xs:int, a dateTime without a zone, tokens of one letter at least.
PATTERNS = {
    "time": r"\d+\.\d{3}",
    "id": r"\d+",
    **dict.fromkeys(("tests", "failures", "errors", "skipped"), r"\d+"),
    "timestamp": r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}",
    "hostname": r"\S+",
}


SLOW = row(
    "slow",
    "fail",
    value=1.0,
    unit="GB/s",
    limit=LimitRow(value=2.0, unit="GB/s", source="a data sheet", kind="at least"),
    remedy="reseat it",
    seconds=1.5,
    attempts=[Attempt(status="fail", value=v, seconds=1.5, body=1.0) for v in (0.9, 1.0)],
)
ALL = [row("good", "pass"), row("odd", "warn", remedy="look"), SLOW, row("none", "skip"), row("lost", "error")]


def parsed(report: RunReport) -> ET.Element:
    root = ET.fromstring(junit(report))  # noqa: S314 (our own)
    _shape(root)
    return root


def _shape(element: ET.Element) -> None:
    tags = "".join(f"{child.tag} " for child in element)
    assert re.fullmatch(CHILDREN.get(element.tag, ""), tags), (element.tag, tags)
    assert REQUIRED.get(element.tag, set()) <= set(element.attrib) <= ALLOWED.get(element.tag, set()), element.attrib
    for name, pattern in PATTERNS.items():
        assert re.fullmatch(pattern, element.get(name, ""), re.ASCII) or name not in element.attrib, (
            name,
            element.attrib,
        )
    for child in element:
        _shape(child)


def case(root: ET.Element, name: str) -> ET.Element:
    (actual,) = (c for c in root.iter("testcase") if c.get("name") == name)
    return actual


def test_each_status_becomes_what_a_viewer_shows() -> None:
    root = parsed(report(*ALL))
    assert [[child.tag for child in case(root, o.id)] for o in ALL] == [[], [], ["failure"], ["skipped"], ["error"]]
    assert {k: root[0].get(k) for k in ("tests", "failures", "errors", "skipped", "time")} == {
        "tests": "5",
        "failures": "1",
        "errors": "1",
        "skipped": "1",
        "time": "60.000",
    }
    assert case(root, "slow").get("time") == "3.000"


def test_a_failure_says_value_limit_source_and_remedy() -> None:
    failure = case(parsed(report(*ALL)), "slow")[0]
    assert failure.get("message") == "slow said so"
    assert (failure.text or "").splitlines() == [
        "fail: slow said so",
        "value: 1 GB/s",
        "limit: ≥ 2 GB/s",
        "source: a data sheet",
        "to do: reseat it",
        "attempt: 1 of 2: fail, 0.9 GB/s",
        "attempt: 2 of 2: fail, 1 GB/s",
    ]


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.stem)
def test_the_example_reports_are_valid(path: Path) -> None:
    made = load(path)
    assert parsed(made)[0].get("tests") == str(len(made.plan.checks))


@each("character", ["\x00", "\x08", "\x0b", "\x1f", "\ufffe", "\ud800", "\x1b[31m", "\x1b]0;t\x07"])
def test_what_xml_cannot_hold_is_left_out_of_a_log(character: str) -> None:
    crashed = row("crash", "error", log=f"Fatal{character} error <&>]]> é 漢")
    assert (case(parsed(report(crashed)), "crash")[0].text or "").endswith("\n\nFatal error <&>]]> é 漢")
    loud = row("loud", "pass", log=f"Fatal{character} error <&>]]> é 漢")
    assert parsed(report(loud))[0].findtext("system-err") == "loud:\nFatal error <&>]]> é 漢"


def test_a_check_that_never_ran_is_an_error() -> None:
    whole = report(row("good", "pass"))
    plan = Plan(level="quick", checks=[*whole.plan.checks, planned("lost")], nproc=2)
    cut = report(row("good", "pass"), plan=plan, ended="", verdict=verdict(whole.outcomes, "gpu", complete=False))
    root = parsed(cut)
    assert case(root, "lost")[0].tag == "error"
    assert root[0].get("errors") == "1"


@each("outcomes", [[], [row("none", "skip")]])
def test_a_run_that_proved_nothing_is_not_green(outcomes: list[OutcomeRow]) -> None:
    error = case(parsed(report(*outcomes)), "verdict")[0]
    assert (error.tag, error.get("message")) == ("error", "UNDETERMINED: nothing passed")
