"""A report as JUnit XML, as CI viewers read it: one test suite a run, one test case a check.

It keeps to what two published schemas both allow: Jenkins' (jenkinsci/xunit-plugin, junit-10.xsd) and Ant's
(windyroad/JUnit-Schema, JUnit.xsd). The latter has no output of single test cases: it stands in the suite's.
"""

import re
from typing import Final
from xml.etree import ElementTree as ET

from envcheck.counting import printable
from envcheck.reports import phrases
from envcheck.reports.formats import Format
from envcheck.reports.model import RunReport
from envcheck.runner.schema import OutcomeRow

_RESULTS: Final = {"fail": "failure", "error": "error", "skip": "skipped"}
_MOMENT: Final = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}")


def junit(report: RunReport) -> str:
    """Return the XML document; a check that never ran, and a verdict that nothing here explains, is an error in it."""
    suite = ET.Element("testsuite", {"name": f"envcheck {report.plan.level}", "id": "0", "package": "envcheck"})
    suite.set("hostname", printable(report.host.name).strip() or "unknown")
    suite.set("timestamp", report.started[:19] if _MOMENT.match(report.started) else "1970-01-01T00:00:00")
    suite.set("time", f"{max(phrases.seconds(report), 0):.3f}")
    properties = ET.SubElement(suite, "properties")
    for name, value in _properties(report).items():
        ET.SubElement(properties, "property", {"name": name, "value": value})
    levels = {check.id: check.level for check in report.plan.checks}
    for outcome in report.outcomes:
        seconds = sum(attempt.seconds for attempt in outcome.attempts) or outcome.seconds
        log = [outcome.log] if outcome.log else []
        text = "" if outcome.status == "skip" else "\n\n".join([_particulars(outcome), *log])
        told = (outcome.summary, outcome.code or outcome.status, text)
        _case(suite, levels.get(outcome.id, report.plan.level), outcome.id, seconds, outcome.status, told)
    for identity in phrases.unfinished(report):
        never = "never ran: the run was cut short"
        _case(suite, levels[identity], identity, 0, "error", (never, "error", never))
    if report.verdict.exit_code and not any(map(suite.findall, ("testcase/failure", "testcase/error"))):
        sentence = report.verdict.sentence
        _case(suite, report.plan.level, "verdict", 0, "error", (sentence, "error", sentence))
    # What is no test case's own: the verdict, what passed with its values, what was warned of; and last words of these.
    others = [outcome for outcome in report.outcomes if outcome.status not in _RESULTS]
    said = [phrases.conclusion(report), *map(_particulars, others)]
    ET.SubElement(suite, "system-out").text = "\n\n".join(said)
    logs = [f"{outcome.id}:\n{outcome.log}" for outcome in others if outcome.log]
    ET.SubElement(suite, "system-err").text = "\n\n".join(logs)
    for name, found in (("tests", ""), ("failures", "/failure"), ("errors", "/error"), ("skipped", "/skipped")):
        suite.set(name, str(len(suite.findall(f"testcase{found}"))))
    root = ET.Element("testsuites")
    root.append(suite)
    for element in suite.iter():
        element.attrib = {name: printable(value) for name, value in element.attrib.items()}
        element.text = printable(element.text) if element.text else element.text
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _case(suite: ET.Element, level: str, name: str, seconds: float, status: str, told: tuple[str, str, str]) -> None:
    place = {"classname": f"envcheck.{level}", "name": name, "time": f"{max(seconds, 0):.3f}"}
    case, (message, kind, text) = ET.SubElement(suite, "testcase", place), told
    if status == "skip":
        ET.SubElement(case, "skipped", {"message": message})
    elif result := _RESULTS.get(status):
        ET.SubElement(case, result, {"message": message, "type": kind}).text = text


def _particulars(outcome: OutcomeRow) -> str:
    lines = [f"{title}: {text}" for title, text in phrases.particulars(outcome) if title not in ("why", "log")]
    named = "" if outcome.status in _RESULTS else f"{outcome.id}: "
    return "\n".join([f"{named}{outcome.status}: {outcome.summary}", *lines])


def _properties(report: RunReport) -> dict[str, str]:
    properties = {
        "verdict": report.verdict.sentence,
        "envcheck": report.tool,
        "target": report.target.name,
        "image_id": report.target.image_id or "",
        "environment": phrases.environment(report.environment),
        "ran_on": phrases.hardware(report),
        "cell": report.promises.get("cell", ""),
    }
    gpus = {f"gpu{index}": gpu.uuid for index, gpu in enumerate(report.snapshot.gpus)}
    return {name: value for name, value in {**properties, **gpus}.items() if value}


FORMAT: Final = Format(junit, suffix=".xml")
