"""Each breakage of breakages.yaml, made in a real environment: its check finds and names it; its sound variant passes.

A row is run by the public command, with its check and the static ones of BESIDE. Three things are shown: the check says
what the row says; no other check does but those of `also`; and the same report judged again without these is a pass, so
the breakage is lost when they are taken away. A row with `missed` says why nothing finds it today: it fails once it is
found, so that `missed` is taken out.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from envcheck.reports.model import RunReport, load, rejudge
from envcheck.runner import judging
from envcheck.runner.planning import discover
from envcheck.runner.schema import OutcomeRow
from tests.tables import beside

pytestmark = [pytest.mark.torch, pytest.mark.timeout(400)]
Row = dict[str, Any]
ROWS: list[Row] = beside(__file__, "breakages.yaml")
FIELDS = {"name", "files", "make", "sound", "found", "unshare", "options", "missed"}
CANNOT = 77
SIMULATE = Path(__file__).parents[1] / "simulated/simulate.py"
# Not image-config: it judges this machine.
BESIDE = ("environment-variables", "ignored-settings", "installed-files", "shared-libraries", "requirements", "shm")
SHELL = r"""set -euo pipefail
own() { for f; do cp -p "$f" "$f.own" && mv -f "$f.own" "$f"; done; }
library() { mkdir -p "$(dirname "$1")" && cc -shared -fPIC -O1 -w -fno-builtin -D_GNU_SOURCE -o "$1" -x c - -ldl; }
package() {
  mkdir -p "$1-$2.dist-info"
  printf 'Metadata-Version: 2.1\nName: %s\nVersion: %s\n' "$1" "$2" >"$1-$2.dist-info/METADATA"
  printf '%s-%s.dist-info/METADATA,,\n' "$1" "$2" >"$1-$2.dist-info/RECORD"
}
recorded() {
  for f in "${@:2}"; do
    echo "$f,sha256=$(openssl dgst -sha256 -binary "$f" | basenc --base64url | tr -d =),"
  done >>"$1/RECORD"
}
value() {
  local x="x = (t.arange(33) + 2).float() / 16"
  "$PYTHON" -W ignore -c "import torch as t; $x; print(($1).double().sum().item())" 2>&1
}
changes() { right=$(value "$1"); export LD_PRELOAD=$2; wrong=$(value "$1" || true); [ "$right" != "$wrong" ]; }
group() {
  at=/sys/fs/cgroup/$1/breakage-$$
  mkdir "$at" && echo "$3" >"$at/$2" || exit 77
  setsid bash -c "while kill -0 $$; do sleep 1; done; sleep 1; rmdir $at" >/dev/null 2>&1 &
  echo $$ >"$at/tasks"
}
requires() {
  own torch-*.dist-info/METADATA
  sed -i "0,/^Requires-Dist/s//Requires-Dist: $1\n&/" torch-*.dist-info/METADATA
}
cd "$SITE"
"""


def link(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def copied(python: Path, target: Path) -> Path:
    shutil.copytree(python.parents[1], target, symlinks=True, copy_function=link)
    return target / "bin/python"


@pytest.fixture(scope="session")
def untouched(torch_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a copy for the rows that change no file of it."""
    directory = tmp_path_factory.mktemp("untouched")
    yield copied(torch_python, directory / "venv")
    shutil.rmtree(directory)


Made = Callable[[Row, str], RunReport | str]


@pytest.fixture
def made(torch_python: Path, untouched: Path, tmp_path: Path) -> Iterator[Made]:
    """Return what runs the command where a row's lines were run: its report, or its last line where it made none."""

    def run(row: Row, lines: str) -> RunReport | str:
        python = copied(torch_python, tmp_path / "venv") if "files" in row else untouched
        [site] = python.parents[1].glob("lib/python*/site-packages")
        simulated = "SIMULATED_" in lines
        beside = BESIDE[-2:] if simulated else BESIDE  # the simulation itself is a start-up file on PYTHONPATH
        checks = dict.fromkeys([row["found"]["check"], *row["found"].get("also", []), *beside])
        words = [word for check in checks if check != "torch" for word in ("--only", check)]
        program = [str(SIMULATE)] if simulated else ["-m", "envcheck"]
        command = [sys.executable, *program, "run", "--python", str(python), *words, *row.get("options", "").split()]
        script = [*row.get("unshare", "").split(), "bash", "-c", f'{SHELL}\n{lines}\ncd "$HERE"\nexec "$@"', "-"]
        report, log = tmp_path / "report.json", tmp_path / "log"
        environment = {**os.environ, "SITE": str(site), "HERE": str(tmp_path), "PYTHON": str(python)}
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
        with log.open("w") as out:
            argv = [*script, *command, "--output", str(report)]
            process = subprocess.Popen(argv, env=environment, stdout=out, stderr=out, start_new_session=True)
            try:
                process.wait(timeout=200)
            finally:
                with contextlib.suppress(ProcessLookupError):  # what the lines left running
                    os.killpg(process.pid, signal.SIGKILL)
        printed = log.read_text(encoding="utf-8", errors="replace")
        if process.returncode == CANNOT:
            pytest.skip(f"this machine does not allow it: {printed.strip()[-200:]}")
        # Not by an assertion, which is what a row that is missed may fail by.
        if "\nTraceback" in f"\n{printed}" or not (report.exists() or process.returncode == row["found"].get("exit")):
            pytest.fail(f"exit code {process.returncode}: {printed[-2000:]}")
        return load(report) if report.exists() else printed.strip().splitlines()[-1]

    yield run
    shutil.rmtree(tmp_path)


def alarms(report: RunReport) -> dict[str, OutcomeRow]:
    return {row.id: row for row in report.outcomes if row.status in ("fail", "warn", "error")}


def without(report: RunReport, lost: set[str]) -> str:
    """Return what a report comes to, judged again with these checks taken away."""
    plan = structs.replace(report.plan, checks=[check for check in report.plan.checks if check.id not in lost])
    kept = [row for row in report.outcomes if row.id not in lost]
    again = rejudge(structs.replace(report, plan=plan, outcomes=kept)).report
    # What is said of an environment whose torch cannot be imported names no cause.
    return judging.verdict([row for row in again.outcomes if row.id != "torch"], again.mode).status


@pytest.mark.parametrize("breakage", [row for row in ROWS if {"files", "make"} & {*row}], ids=lambda row: row["name"])
def test_a_breakage_is_found_by_its_check_and_lost_without_it(breakage: Row, made: Made, request: Any) -> None:
    if "missed" in breakage:
        request.applymarker(pytest.mark.xfail(reason=breakage["missed"], strict=True, raises=AssertionError))
    if "unshare" in breakage and subprocess.run([*breakage["unshare"].split(), "true"], check=False).returncode:
        pytest.skip(f"this machine does not allow `{breakage['unshare']}`")
    report = made(breakage, breakage.get("files") or breakage["make"])
    told = breakage["found"]
    if isinstance(report, str):
        assert [word for word in (told["culprit"], told["remedy"]) if word not in report] == [], report
        return
    found = alarms(report)
    texts = {row.id: row.summary for row in found.values()}
    alarmed = {told["check"], *told.get("also", [])} if told["status"] != "pass" else set()
    assert {*found} == alarmed, texts or report.verdict
    [mine] = [row for row in report.outcomes if row.id == told["check"]]
    code = report.verdict.exit_code
    assert (mine.status, code) == (told["status"], told.get("exit", code)), texts
    assert told["culprit"] in " ".join([mine.summary, *(finding.summary for finding in mine.findings)])
    assert told["remedy"] in " ".join([mine.remedy, *(finding.remedy for finding in mine.findings)])
    assert without(report, {*found}) == "pass"


@pytest.mark.parametrize("variant", [row for row in ROWS if "sound" in row], ids=lambda row: row["name"])
def test_the_same_done_harmlessly_raises_no_alarm(variant: Row, made: Made) -> None:
    report = made(variant, variant["sound"])
    assert isinstance(report, RunReport), report
    assert {row.id: row.summary for row in alarms(report).values()} == {}


def test_a_row_has_no_field_that_nothing_reads() -> None:
    checks = {"torch", *(module.id for module in discover())}
    assert {key for row in ROWS for key in row} <= FIELDS
    assert {check for row in ROWS for check in [row["found"]["check"], *row["found"].get("also", [])]} <= checks
