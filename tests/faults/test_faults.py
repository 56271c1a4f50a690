"""Each fault of the catalogue ends in its own check, status and culprit; a sound machine raises no alarm."""

import dataclasses
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from envcheck.node.snapshot import Gpu, Signal, Snapshot
from envcheck.reports.model import RunReport, load, rejudge
from envcheck.runner import outcomes
from envcheck.runner.schema import OutcomeRow
from tests.checks.sabotage.lies import LIES
from tests.checks.test_codes import undocumented
from tests.faults.conftest import CHECKS, blankless, catalogue, evidence, recordings, sound

TESTS = Path(__file__).parents[1]
# What a sound machine may rightly be warned of: the calendar moves on.
TIMELY = {"driver-branch"}
ALARMS = ("fail", "error", "warn")
EXIT = {"fail": 1, "error": 3, "warn": 0}
Row = dict[str, Any]
FAULTS = catalogue("faults.yaml")


def culprits(row: Row) -> list[str]:
    """Return what the summary has to name: of several faults at once each."""
    named = row["culprit"]
    return named if isinstance(named, list) else [named]


def told_rightly(row: Row, identity: str, result: Any) -> None:
    """Hold what is printed, the JSON and the exit code against the row."""
    actual = result.outcomes[identity]
    assert actual["status"] == row["status"], actual
    assert all(culprit in actual["summary"] for culprit in culprits(row))
    assert any(blankless(culprit) in result.printed for culprit in culprits(row))
    told_findings = [(f["status"], f["code"], f["culprit"]) for f in actual["findings"]]
    expected = row.get("findings", [])
    assert len(told_findings) == len(expected) or not expected, told_findings
    for (status, code, culprit), one in zip(expected, told_findings, strict=False):
        assert one[:2] == (status, code)
        assert one[2].startswith(culprit)
    assert actual["remedy"] or row["status"] == "error", actual
    assert row.get("remedy", "") in actual["remedy"]
    assert blankless(actual["remedy"]) in result.printed
    assert (result.code, result.verdict["exit_code"]) == (row.get("exit", EXIT[row["status"]]),) * 2
    assert identity in result.verdict["sentence"] or EXIT[row["status"]] != result.code or not result.code
    said = result.verdict["sentence"].replace("UNDETERMINED:", "UNDETERMINED (neither pass nor fail):")
    assert blankless(said) in result.printed


def test_a_fault_is_found_by_its_check_and_its_culprit_is_named(fault: Row, judged: Callable[..., Any]) -> None:
    told_rightly(fault, fault["check"], judged(fault))


def test_nothing_else_is_blamed_for_a_fault(fault: Row, judged: Callable[..., Any]) -> None:
    others = {i for i, actual in judged(fault).outcomes.items() if actual["status"] in ALARMS} - {fault["check"]}
    assert others - TIMELY == {*fault.get("also", [])} - TIMELY


def test_every_outcome_of_a_faulty_machine_that_is_no_pass_has_a_documented_code(
    fault: Row, judged: Callable[..., Any]
) -> None:
    assert undocumented(msgspec.convert([*judged(fault).outcomes.values()], list[OutcomeRow])) == []


def test_a_second_measurement_that_finds_the_same_loses_none_of_it(fault: Row, judged: Callable[..., Any]) -> None:
    row = msgspec.convert(judged(fault).outcomes[fault["check"]], OutcomeRow)
    real = [finding for finding in row.findings if finding.status in ALARMS]
    assert len(outcomes.merged_findings(row, row)) == (min(len(real), 100) if len(real) > 1 else 0)


@pytest.mark.torch
def test_a_rank_that_lies_is_found_and_named(
    lie: Row, sabotaged: Callable[..., Any], judge: Callable[..., Any]
) -> None:
    run = sabotaged(lie["sabotage"])
    assert run.code == 1
    assert all(blankless(culprit) in blankless(run.printed) for culprit in culprits(lie))
    everything = load(run.report)
    # Judged alone, on the measurements that the lying ranks made: the exit code is that of this fault.
    [mine] = [row for row in everything.outcomes if row.id == lie["sabotage"]]
    plan = structs.replace(everything.plan, checks=[c for c in everything.plan.checks if c.id == mine.id])
    result = judge(structs.replace(everything, plan=plan, outcomes=[mine]), "--checks", str(run.site))
    assert (mine.status, mine.summary) == (lie["status"], result.outcomes[mine.id]["summary"])
    told_rightly({"exit": EXIT[lie["status"]] or 3, **lie}, mine.id, result)


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
def processes(once: Callable[..., Path]) -> tuple[str, dict[str, Any]]:
    """Run every process that breaks, in one run of the command in this interpreter, beside a sound one."""
    bodies = {row["fault"]: row["rank"] for row in FAULTS if "rank" in row} | {"sound": "return {}"}

    def run(site: Path) -> None:
        (site / "env").mkdir()
        for fault, body in bodies.items():
            (site / "env" / f"{_name(fault)}.py").write_text(CHECK.format(measure=textwrap.indent(body, "    ")))
        command = [sys.executable, "-m", "envcheck", "run", "--python", sys.executable, "--nproc", "2"]
        command += ["--checks", str(site), "--output", str(site / "report.json")]
        command += [word for fault in bodies for word in ("--only", _name(fault).replace("_", "-"))]
        completed = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, check=False)
        assert completed.returncode == 3, completed.stderr
        (site / "printed.txt").write_text(completed.stdout)

    site = once("processes", run)
    outcomes = json.loads((site / "report.json").read_text())["outcomes"]
    return blankless((site / "printed.txt").read_text()), {row["id"]: row for row in outcomes}


def _name(fault: str) -> str:
    return re.sub("[^a-z]+", "_", fault.lower())


def test_a_process_that_breaks_is_one_error_that_names_it(process: Row, processes: tuple[str, dict[str, Any]]) -> None:
    printed, outcomes = processes
    actual = outcomes[_name(process["fault"]).replace("_", "-")]
    assert actual["status"] == process["status"], actual
    assert process["culprit"] in actual["summary"]
    assert blankless(process["culprit"]) in printed
    assert blankless(actual["remedy"]) in printed
    assert outcomes["sound"]["status"] == "pass"


def test_a_sound_machine_raises_no_alarm(sane: Row, judged: Callable[..., Any]) -> None:
    result = judged(sane)
    assert {i: o["summary"] for i, o in result.outcomes.items() if o["status"] in ("fail", "error")} == {}
    assert {i for i, o in result.outcomes.items() if o["status"] == "warn"} - TIMELY == {*sane.get("warns", [])}
    # A machine without a GPU has nothing that a check of the node could pass or fail, but what holds for any.
    assert (result.code, result.verdict["status"]) == (0, "pass")


def speechless(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with another text in place of each reason; `why` stays."""

    def without(signals: dict[str, Signal]) -> dict[str, Signal]:
        texts = {name: "no words" for name, signal in signals.items() if signal.reason is not None}
        return {name: dataclasses.replace(signal, reason=texts.get(name)) for name, signal in signals.items()}

    gpus = [Gpu(gpu.uuid, without(gpu.signals)) for gpu in snapshot.gpus]
    return dataclasses.replace(snapshot, signals=without(snapshot.signals), gpus=gpus)


def decided(report: RunReport) -> list[tuple[str, str, str, list[tuple[str, str]]]]:
    """Return what each check decides, without its texts."""
    outcomes = rejudge(report).report.outcomes
    return [(o.id, o.status, o.code, [(one.status, one.code) for one in o.findings]) for o in outcomes]


def test_no_status_depends_on_the_text_of_a_reason() -> None:
    seen = set()
    for row in [row for row in [*FAULTS, *sound()] if not {"sabotage", "rank"} & row.keys()]:
        report = evidence(row)
        known = report.snapshot
        seen |= {signal.why for gpu in known.gpus for signal in gpu.signals.values()}
        seen |= {signal.why for signal in known.signals.values()}
        texts, words = (structs.replace(report, snapshot=one) for one in (known, speechless(known)))
        assert decided(texts) == decided(words), row
    assert seen >= {"unsupported", "denied", "failed", "lost", "mismatch", "timed-out"}


def test_a_row_has_no_field_that_nothing_reads() -> None:
    assert {row["check"] for row in FAULTS} <= {*CHECKS, "runner"}
    assert {row["status"] for row in FAULTS} <= {"fail", "warn", "error"}
    fields = {"fault", "machine", "node", "gpus", "gone", "environment", "promises", "measured", "sabotage", "rank"}
    fields |= {"earlier", "repeated", "check", "status", "culprit", "remedy", "findings", "also", "exit"}
    assert {key for row in FAULTS for key in row} <= fields


def test_every_check_of_the_node_has_a_fault_that_it_catches() -> None:
    caught = {row["check"] for row in FAULTS}
    assert sorted(actual.id for actual in CHECKS.values() if actual.kind == "node" and actual.id not in caught) == [], (
        "add a fault of each of these checks to tests/faults/faults.yaml"
    )


def test_every_sabotage_is_a_fault_of_the_catalogue() -> None:
    result = {row["sabotage"] for row in FAULTS if "sabotage" in row}
    files = {path.stem: path.read_text() for path in (TESTS / "checks/sabotage/env").glob("*.py")}
    kept = {name for name, text in files.items() if not text.startswith('"""Nothing is wrong')}
    assert {name.replace("_", "-") for name in {*LIES, *kept}} == result


def test_recordings_of_public_machines_name_their_sources() -> None:
    machines = recordings()
    assert [row["name"] for row in machines if not re.match(r"[\w.-]+/[\w.-]+(#\d+$| \S+$)", row["source"])] == []
    assert all(("fault" in row) == ("sick" in row["kinds"]) for row in machines)
