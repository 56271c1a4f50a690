"""A report as JUnit XML, as CI viewers read it: one test suite a run, one test case a check."""

from __future__ import annotations

from typing import Final
from xml.etree import ElementTree as ET

from envcheck.reports import words
from envcheck.reports.model import RunReport
from envcheck.runner.record import OutcomeRow

_RESULTS: Final = {"fail": "failure", "error": "error", "skip": "skipped"}


def junit(report: RunReport) -> str:
    """Return the XML document; a check that never ran, and a verdict that nothing here explains, is an error in it."""
    suite = ET.Element("testsuite", {"name": f"envcheck {report.plan.level}", "id": "0", "package": "envcheck"})
    suite.set("hostname", words.printable(report.host.name) or "unknown")
    suite.set("timestamp", report.started[:19] or "1970-01-01T00:00:00")
    properties = ET.SubElement(suite, "properties")
    for name, value in _properties(report).items():
        ET.SubElement(properties, "property", {"name": name, "value": words.printable(value)})
    levels = {check.id: check.level for check in report.plan.checks}
    for outcome in report.outcomes:
        suite.append(_case(outcome, levels.get(outcome.id, report.plan.level)))
    for identity in words.unfinished(report):
        suite.append(_error(levels[identity], identity, "never ran: the run was cut short"))
    if report.verdict.exit_code and not _counted(suite, "failure") + _counted(suite, "error"):
        suite.append(_error(report.plan.level, "verdict", report.verdict.sentence))
    ET.SubElement(suite, "system-out").text = words.printable(report.verdict.sentence)
    return _document(suite, words.seconds(report))


def _document(suite: ET.Element, seconds: float) -> str:
    counts = {
        "tests": _counted(suite, None),
        "failures": _counted(suite, "failure"),
        "errors": _counted(suite, "error"),
        "skipped": _counted(suite, "skipped"),
    }
    root = ET.Element("testsuites", {"name": "envcheck"})
    root.append(suite)
    for element in (root, suite):
        for name, count in counts.items():
            element.set(name, str(count))
        element.set("time", f"{seconds:.3f}")
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _counted(suite: ET.Element, result: str | None) -> int:
    return sum(result is None or case.find(result) is not None for case in suite.iter("testcase"))


def _case(outcome: OutcomeRow, level: str) -> ET.Element:
    seconds = sum(attempt.seconds for attempt in outcome.attempts) or outcome.seconds
    case = ET.Element("testcase", {"classname": f"envcheck.{level}", "name": words.printable(outcome.id)})
    case.set("time", f"{seconds:.3f}")
    message = words.printable(outcome.summary)
    result = _RESULTS.get(outcome.status)
    if result == "skipped":
        ET.SubElement(case, result, {"message": message})
    elif result:
        finding = ET.SubElement(case, result, {"message": message, "type": outcome.status})
        finding.text = _particulars(outcome)
    else:
        ET.SubElement(case, "system-out").text = _particulars(outcome)
    if outcome.log and result != "skipped":
        ET.SubElement(case, "system-err").text = words.printable(outcome.log)
    return case


def _error(level: str, name: str, message: str) -> ET.Element:
    case = ET.Element("testcase", {"classname": f"envcheck.{level}", "name": name, "time": "0.000"})
    text = words.printable(message)
    ET.SubElement(case, "error", {"message": text, "type": "error"}).text = text
    return case


def _particulars(outcome: OutcomeRow) -> str:
    lines = [f"{title}: {text}" for title, text in words.particulars(outcome) if title not in ("why", "log")]
    return words.printable("\n".join([f"{outcome.status}: {outcome.summary}", *lines]))


def _properties(report: RunReport) -> dict[str, str]:
    told = {
        "verdict": report.verdict.sentence,
        "envcheck": report.tool,
        "target": report.target.name,
        "image_id": report.target.image_id or "",
        "environment": words.environment(report.environment),
        "ran_on": words.hardware(report),
        "cell": report.promises.get("cell", ""),
    }
    gpus = {f"gpu{index}": gpu.uuid for index, gpu in enumerate(report.snapshot.gpus)}
    return {name: value for name, value in {**told, **gpus}.items() if value}
