"""The example reports are reports, say where they come from, and are what today's judges make of their evidence."""

import subprocess
import sys
from pathlib import Path

import pytest

from envcheck.reports import model
from envcheck.reports.model import load, rejudge

SCHEMA = Path(model.__file__).with_name("report.schema.json")
DATA = Path(__file__).parents[1] / "data"
REPORTS = sorted((DATA / "reports").glob("*.json"))
EACH = pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.stem)


@EACH
def test_an_example_is_what_todays_judges_make_of_it(path: Path) -> None:
    report = load(path)
    rejudged_report = rejudge(report)
    assert (list(rejudged_report.changed), rejudged_report.unknown) == ([], [])
    assert rejudged_report.report.verdict == report.verdict
    assert [(o.id, o.code, o.findings) for o in rejudged_report.report.outcomes] == [
        (o.id, o.code, o.findings) for o in report.outcomes
    ]


def test_the_examples_conform_to_the_published_schema() -> None:
    argv = [str(Path(sys.executable).with_name("check-jsonschema")), "--schemafile", str(SCHEMA), *map(str, REPORTS)]
    completed = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (completed.returncode, len(REPORTS) >= 2) == (0, True), completed.stdout
