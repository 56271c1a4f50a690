"""The report as programs read it: its schema is published, and it is on disk whole or not at all."""

import codecs
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from envcheck.cli.commands.report import schema_of
from envcheck.errors import ConfigError
from envcheck.reports import model
from envcheck.reports.model import encode, load, rejudge, write
from envcheck.runner.execute import Run
from envcheck.runner.local_python import ChosenPython, LocalPython
from envcheck.runner.schema import LimitRow, OutcomeRow, Plan
from envcheck.runner.worker_session import RunPlan
from tests.builders import report
from tests.processes import ran

SCHEMA = Path(model.__file__).with_name("report.schema.json")

FAIL = OutcomeRow(
    id="speed",
    kind="env",
    status="fail",
    summary="slow",
    value=1.0,
    unit="GB/s",
    limit=LimitRow(value=2.0, unit="GB/s", source="a test", kind="at least"),
    remedy="wait",
    details={"curve": [[1, 2.0]]},
    ranks=[{"x": "nan"}, None],
)


def checked(*files: Path) -> subprocess.CompletedProcess[str]:
    return ran([Path(sys.executable).with_name("check-jsonschema"), "--schemafile", SCHEMA, *files])


def test_the_committed_schema_is_todays() -> None:
    again = "run `envcheck schema report > envcheck/reports/report.schema.json`"
    assert SCHEMA.read_text() == schema_of("report"), again


def test_what_is_no_report_is_not_read_and_does_not_conform(tmp_path: Path) -> None:
    made: dict[str, Any] = json.loads(encode(report(FAIL)))
    [row] = made["outcomes"]
    change = {"rule": "worst-round", "before": "pass", "after": "fail", "reason": "x"}
    changes: tuple[dict[str, Any], ...] = (
        {"schema": "envcheck/report/2"},
        {"schema": 1},
        {"mode": "tpu"},
        {"outcomes": [{}]},
        {"more": 1},
        {"outcomes": [{**row, "limit": {**row["limit"], "more": 1}}]},
        {"outcomes": [{**row, "changes": [{**change, "more": 1}]}]},
        {"outcomes": [{**row, "limit": {"value": 2.0, "unit": "GB/s", "source": "of no kind"}}]},
    )
    for change in changes:
        (tmp_path / "instance.json").write_text(json.dumps({**made, **change}))
        with pytest.raises(ConfigError, match=r"instance\.json is not a report"):
            load(tmp_path / "instance.json")
    assert checked(tmp_path / "instance.json").returncode == 1


def test_what_json_cannot_hold_is_written_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.node", lambda: "n\udcff")
    target = LocalPython(ChosenPython(Path("/opt/\udcff"), "x"))
    run = Run(RunPlan(plan=Plan(level="quick", checks=[], nproc=1), chosen=[], target=target))
    run.known["odd"] = OutcomeRow(id="odd", kind="env", status="fail", summary="no \udcff", remedy="x", code="a.b")
    run.environment = {"devices": [{"memory": math.nan}], "warp": math.inf}
    made = model.report_of(run)
    write(made, tmp_path / "r.json")
    assert made.outcomes[0].summary == "no \\udcff"
    assert load(tmp_path / "r.json").environment == {"devices": [{"memory": "nan"}], "warp": "inf"}
    assert (made.host.name, made.target.name) == ("n\\udcff", "/opt/\\udcff")


def test_a_report_is_read_back_as_it_was(tmp_path: Path) -> None:
    made = report(FAIL)
    write(made, tmp_path / "r.json")
    assert load(tmp_path / "r.json") == made
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]
    # As Windows' Notepad saves it.
    (tmp_path / "r.json").write_bytes(codecs.BOM_UTF8 + (tmp_path / "r.json").read_bytes())
    assert load(tmp_path / "r.json") == made


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
    completed = checked(*REPORTS)
    assert (completed.returncode, len(REPORTS) >= 2) == (0, True), completed.stdout
