"""Each fault of the catalogue ends in its own check, status and culprit; a sound machine raises no alarm."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envcheck.runner.discover import Found
from envcheck.runner.drive import Run

TESTS = Path(__file__).parents[1]
SABOTAGE = TESTS / "checks" / "sabotage"
# What a sound machine may rightly be warned of: the calendar moves on.
TIMELY = {"driver-branch"}
ALARMS = ("fail", "error", "warn")
Row = dict[str, Any]


def test_a_fault_is_caught_by_its_check_and_blamed_on_nothing_else(fault: Row, judged: Callable[..., Run]) -> None:
    run = judged(fault)
    found = run.outcomes[fault["check"]]
    assert found.status == fault["status"], found
    assert fault["culprit"] in found.summary
    if fault["status"] != "error":
        assert found.remedy
    others = {o.id for o in run.outcomes.values() if o.status in ALARMS} - {fault["check"]}
    assert others - TIMELY == {*fault.get("also", [])} - TIMELY


def test_a_fault_that_fails_fails_the_run_by_name(fault: Row, judged: Callable[..., Run]) -> None:
    verdict = judged(fault).verdict
    code = {"fail": 1, "error": 3}.get(fault["status"])
    if code is None:
        assert verdict.counts["warn"] > 0
        return
    assert verdict.exit_code in {1, code}
    assert verdict.exit_code != code or fault["check"] in verdict.sentence


@pytest.fixture(scope="session")
def outcomes(torch_python: Path, tmp_path_factory: pytest.TempPathFactory, rows: list[Row]) -> dict[str, Any]:
    """Run every sabotaged check once, in one run of the command as users have it."""
    if not os.environ.get("ENVCHECK_REQUIRE_ALL"):
        pytest.skip("tests/checks runs each sabotage; with ENVCHECK_REQUIRE_ALL=1 all of them are run here too")
    lies = [row["sabotage"] for row in rows if "sabotage" in row]
    output = tmp_path_factory.mktemp("faults") / "report.json"
    command = [sys.executable, "-m", "envcheck", "--quiet", "run", "--python", str(torch_python), "--nproc", "2"]
    command += ["--checks", str(SABOTAGE), "--output", str(output)]
    command += [word for lie in lies for word in ("--only", lie)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    return {row["id"]: row for row in json.loads(output.read_text())["outcomes"]}


@pytest.mark.torch
def test_a_rank_that_lies_is_caught_and_named(lie: Row, outcomes: dict[str, Any]) -> None:
    found = outcomes[lie["sabotage"]]
    assert found["status"] == lie["status"], found
    assert lie["culprit"] in found["summary"]
    assert found["remedy"]


CHECK = '''"""Breaks as the catalogue says."""
import ctypes, os, signal, time
from envcheck.checks import Check, passed
CHECK = Check(promise="holds", level="quick", ranks=2, timeout=5)
def measure(rank):
{measure}
def judge(view, ranks):
    return passed("fine", value=ranks[0].get("x"))
'''


@pytest.fixture(scope="session")
def processes(tmp_path_factory: pytest.TempPathFactory, rows: list[Row]) -> dict[str, Any]:
    """Run every process that breaks, in one run of the command in this interpreter, beside a sound one."""
    site = tmp_path_factory.mktemp("site")
    (site / "env").mkdir()
    bodies = {row["fault"]: row["rank"] for row in rows if "rank" in row} | {"sound": "return {}"}
    for fault, body in bodies.items():
        (site / "env" / f"{_name(fault)}.py").write_text(CHECK.format(measure=textwrap.indent(body, "    ")))
    command = [sys.executable, "-m", "envcheck", "--quiet", "run", "--python", sys.executable, "--nproc", "2"]
    command += ["--checks", str(site), "--output", str(site / "report.json")]
    command += [word for fault in bodies for word in ("--only", _name(fault).replace("_", "-"))]
    done = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    return {row["id"]: row for row in json.loads((site / "report.json").read_text())["outcomes"]}


def _name(fault: str) -> str:
    return re.sub("[^a-z]+", "_", fault.lower())


def test_a_process_that_breaks_is_one_error_that_names_it(process: Row, processes: dict[str, Any]) -> None:
    found = processes[_name(process["fault"]).replace("_", "-")]
    assert found["status"] == process["status"], found
    assert process["culprit"] in found["summary"]
    assert processes["sound"]["status"] == "pass"


def test_a_sound_machine_raises_no_alarm(sane: Row, judged: Callable[..., Run]) -> None:
    outcomes = judged(sane).outcomes.values()
    assert {o.id: o.summary for o in outcomes if o.status in ("fail", "error")} == {}
    assert {o.id for o in outcomes if o.status == "warn"} - TIMELY == {*sane.get("warns", [])}


def test_the_table_of_what_was_found_missed_and_falsely_alarmed(
    rows: list[Row],
    machines: list[Row],
    judged: Callable[..., Run],
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    mine = [row for row in rows if not {"sabotage", "rank"} & row.keys()]
    found = [row for row in mine if judged(row).outcomes[row["check"]].status == row["status"]]
    alarmed = [row for row in machines if judged(row).verdict.status == "fail"]
    table = f"{len(mine)} faults of node and environment: {len(found)} found, {len(mine) - len(found)} missed; "
    table += f"{len(rows) - len(mine)} of ranks; {len(machines)} sound machines: {len(alarmed)} false alarms"
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:  # a worker of xdist has none
        with capsys.disabled():
            reporter.write_line(f"\n{table}")
    assert found == mine
    assert alarmed == []
    assert len(machines) >= 20


def test_the_catalogue_is_large_enough_and_says_each_thing_once(rows: list[Row], checks: dict[str, Found]) -> None:
    names = [row["fault"] for row in rows]
    assert len(set(names)) == len(names) >= 60
    assert {row["check"] for row in rows} <= {*checks, "runner"}
    assert {row["status"] for row in rows} <= {"fail", "warn", "error"}
    fields = {"fault", "machine", "node", "gpus", "gone", "environment", "promises", "measured", "sabotage", "rank"}
    assert {key for row in rows for key in row} <= fields | {"check", "status", "culprit", "also"}


def test_every_check_of_the_node_has_a_fault_that_it_catches(rows: list[Row], checks: dict[str, Found]) -> None:
    caught = {row["check"] for row in rows}
    assert sorted(found.id for found in checks.values() if found.kind == "node" and found.id not in caught) == []
