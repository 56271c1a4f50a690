"""Each fault of the catalogue ends in its own check, status and culprit; a sound machine raises no alarm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envcheck.runner.discover import Found
from envcheck.runner.drive import Run

TESTS = Path(__file__).parents[1]
SABOTAGE = TESTS / "checks" / "sabotage"
# Snapshots that are of faulty machines, and what a sound one may rightly be warned of: the calendar moves on.
FAULTY = {"mismatch", "mixed"}
TIMELY = {"driver-branch"}
# The wheels that the default one of the catalogue does not replace.
WHEELS: dict[str, dict[str, Any]] = {
    "v100x4": {"torch": "2.8.0+cu126", "cuda": "12.6", "arch_list": ["sm_50", "sm_60", "sm_70", "sm_75"]},
    "cpu": {"torch": "2.13.0+cpu", "cuda": None, "cudnn": None, "nccl": None, "arch_list": []},
}
MACHINES = sorted(path.stem for path in (TESTS / "data" / "snapshots").glob("*.json") if path.stem not in FAULTY)
Row = dict[str, Any]


def test_a_fault_is_caught_by_its_check_and_blamed_on_nothing_else(fault: Row, judged: Callable[..., Run]) -> None:
    run = judged(fault)
    found = run.outcomes[fault["check"]]
    assert found.status == fault["status"], found
    assert fault["culprit"] in found.summary
    if fault["status"] != "error":
        assert found.remedy
    others = {o.id for o in run.outcomes.values() if o.status in ("fail", "error", "warn")} - {fault["check"]}
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


@pytest.mark.parametrize("name", MACHINES)
def test_a_sound_machine_raises_no_alarm(name: str, judged: Callable[..., Run]) -> None:
    run = judged({"machine": name, "environment": WHEELS.get(name, {})})
    alarms = {o.id: o.summary for o in run.outcomes.values() if o.status in ("fail", "error", "warn")}
    assert alarms.keys() <= TIMELY, alarms


def test_the_catalogue_is_large_enough_and_says_each_thing_once(rows: list[Row], checks: dict[str, Found]) -> None:
    names = [row["fault"] for row in rows]
    assert len(set(names)) == len(names) >= 60
    assert {row["check"] for row in rows} <= set(checks)
    assert {row["status"] for row in rows} <= {"fail", "warn", "error"}
    fields = {"fault", "machine", "node", "gpus", "gone", "environment", "promises", "measured", "sabotage"}
    assert {key for row in rows for key in row} <= fields | {"check", "status", "culprit", "also"}


def test_every_check_of_the_node_has_a_fault_that_it_catches(rows: list[Row], checks: dict[str, Found]) -> None:
    caught = {row["check"] for row in rows}
    assert sorted(found.id for found in checks.values() if found.kind == "node" and found.id not in caught) == []
