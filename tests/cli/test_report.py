"""`envcheck report`, as typed: files in, forms out, one line for what is wrong."""

import functools
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from msgspec import structs

import envcheck
from envcheck.reports import formats
from envcheck.reports.model import HostFacts, write
from envcheck.runner.launcher import Place
from envcheck.runner.schema import OutcomeRow, TargetFacts
from tests import builders
from tests.processes import typed

Envcheck = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Envcheck:
    return functools.partial(typed, cwd=tmp_path)


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    def save(name: str, *outcomes: OutcomeRow) -> Path:
        made = builders.report(
            *outcomes,
            mode="cpu",
            host=HostFacts(name="rack7-n1", system="Linux", kernel="6.1", arch="x86_64", cpus=8, place=Place()),
            target=TargetFacts(kind="python", name="/home/ada/venv/bin/python", chosen="--python"),
            environment={"python": "3.12.3", "device_count": 0, "devices": []},
        )
        write(made, tmp_path / name)
        return tmp_path / name

    return save


GOOD = OutcomeRow(id="ddp", kind="env", status="pass", summary="gradients are equal")


def test_a_form_is_printed_or_written(run: Envcheck, saved: Callable[..., Path], tmp_path: Path) -> None:
    path = saved("r.json", GOOD)
    printed = run("report", "convert", str(path), "--format", "junit")
    assert (printed.returncode, printed.stderr) == (0, "")
    assert ET.fromstring(printed.stdout)[0].get("tests") == "1"  # noqa: S314 (our own)
    written = run("report", "convert", str(path), "--format", "junit", "--output", "j.xml")
    assert (written.returncode, written.stdout) == (0, "")
    assert (tmp_path / "j.xml").read_text() == printed.stdout


def test_two_files_that_are_not_there_are_told_at_once(run: Envcheck) -> None:
    done = run("report", "compare", "none.json", "neither.json")
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "envcheck: 2 inputs are wrong:")
    assert [line.split(":")[0] for line in done.stderr.splitlines()[1:]] == [
        "  cannot read none.json",
        "  cannot read neither.json",
    ]
    wrong = ("--requirements", "none.toml", "--python", "/none", "--only", "nope")
    done = run("run", "--dry-run", *wrong)
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "envcheck: 3 inputs are wrong:")


def test_a_report_of_others_does_not_steer_the_terminal(run: Envcheck, saved: Callable[..., Path]) -> None:
    path = saved("r.json", GOOD)
    content = path.read_text().replace("rack7-n1", "rack\\u001b[2J\\u202e7")
    path.write_text(content.replace('"pass"', '"\\u001b[1mpass"', 1))
    broken = run("report", "show", "r.json")
    assert (broken.returncode, "\x1b" in broken.stderr) == (2, False)
    path.write_text(content)
    conversions = [["report", "convert", "--format", name] for name in formats.names()]
    for argv in (["report", "show"], ["report", "judge"], *conversions):
        done = run(*argv, "r.json")
        assert (done.returncode in (0, 3), done.stderr) == (True, "")
        assert not {"\x1b", "\u202e"} & set(done.stdout), argv


def test_compare_exits_1_when_something_got_worse(run: Envcheck, saved: Callable[..., Path]) -> None:
    bad = OutcomeRow(id="ddp", kind="env", status="fail", summary="replicas differ", remedy="look")
    saved("a.json", GOOD)
    saved("b.json", bad)
    worse, same = run("report", "compare", "a.json", "b.json"), run("report", "compare", "a.json", "a.json", "--json")
    assert (worse.returncode, same.returncode) == (1, 0)
    assert "fail: replicas differ" in worse.stdout
    assert json.loads(same.stdout)["changes"] == []


def test_judge_exits_as_run_would(run: Envcheck, saved: Callable[..., Path], tmp_path: Path) -> None:
    saved("good.json", structs.replace(GOOD, id="of-a-site"))
    saved("bad.json", OutcomeRow(id="of-a-site", kind="env", status="fail", summary="no", remedy="look"))
    good = run("report", "judge", "good.json")
    bad = run("report", "judge", "bad.json", "--output", "again.json", "--json")
    assert (good.returncode, bad.returncode) == (0, 1)
    assert good.stdout.splitlines()[-1] == json.loads((tmp_path / "good.json").read_text())["verdict"]["sentence"]
    assert (tmp_path / "again.json").read_text() == bad.stdout
    assert json.loads(bad.stdout)["judged_by"] == envcheck.__version__


def test_a_full_disk_makes_a_pass_undetermined_and_takes_no_failure_back(
    run: Envcheck, saved: Callable[..., Path]
) -> None:
    good = str(saved("good.json", structs.replace(GOOD, id="of-a-site")))
    bad = str(saved("bad.json", OutcomeRow(id="of-a-site", kind="env", status="fail", summary="no", remedy="look")))
    full = ("--output", "/dev/full")
    for words in (["convert", "--format", "junit"], ["redact"], ["judge"]):
        assert run("report", *words, good, *full).returncode == 3, words
    for failed in (
        run("report", "judge", bad, *full),
        run("fleet", "report", bad, "--max-age", "36500d", "--html", "/dev/full", "--prometheus", "/dev/full"),
    ):
        assert (failed.returncode, "of-a-site" in failed.stdout) == (1, True)
        assert failed.stderr.startswith("envcheck: /dev/full: No space left on device; check the path")


def test_a_run_is_held_against_its_baseline(run: Envcheck, tmp_path: Path) -> None:
    speed = "passed('ran', value={}, unit='GB/s')"
    builders.site_check(tmp_path / "site/node/speed.py", speed.format(100.0))
    argv = ("run", "--checks", "site", "--only", "speed")
    assert run(*argv, "--output", "good.json", "--html", "good.html").returncode == 0
    assert (tmp_path / "good.html").read_text().startswith("<!DOCTYPE html>")
    assert run(*argv, "--baseline", "good.json").returncode == 0
    builders.site_check(tmp_path / "site/node/speed.py", speed.format(40.0))
    slower = run(*argv, "--baseline", "good.json")
    assert slower.returncode == 1
    assert "speed value: -60.0%" in slower.stdout
    builders.site_check(tmp_path / "site/node/other.py", speed.format(1.0))
    apart = run("run", "--checks", "site", "--only", "other", "--baseline", "good.json")
    assert (apart.returncode, apart.stdout.splitlines()[-1]) == (3, "no match; compared 0 checks and speeds")
    broken = run(*argv, "--baseline", "none.json")
    assert (broken.returncode, len(broken.stderr.splitlines())) == (2, 1)


@pytest.mark.parametrize(
    "argv",
    [
        ["run", "--only", "shm", "--baseline", "r.json", "--output", "r.json"],
        ["run", "--only", "shm", "--baseline", "envcheck-report.json"],
        ["run", "--only", "shm", "--baseline", "link.json", "--output", "r.json"],
        ["run", "--only", "shm", "--baseline", "r.json", "--html", "r.json"],
        ["report", "judge", "r.json", "--output", "r.json"],
        ["report", "redact", "r.json", "--output", "./r.json"],
        ["report", "convert", "r.json", "--format", "html", "--output", "link.json"],
    ],
)
def test_what_is_read_is_not_written_over(
    run: Envcheck, saved: Callable[..., Path], tmp_path: Path, argv: list[str]
) -> None:
    before = {path: path.read_bytes() for path in (saved("r.json", GOOD), saved("envcheck-report.json", GOOD))}
    (tmp_path / "link.json").symlink_to("r.json")
    done = run(*argv)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "give each a file of its own" in done.stderr
    assert {path: path.read_bytes() for path in before} == before


def test_the_steps_of_a_job_append_to_one_summary_whatever_they_came_to(run: Envcheck, tmp_path: Path) -> None:
    builders.site_check(tmp_path / "site/node/mine.py", "failed('no', fix='do it')")
    (tmp_path / "summary.md").write_text("# The job\n")
    argv = ("run", "--checks", "site", "--only", "mine", "--summary", "summary.md", "--output", "r.json")
    assert [run(*argv).returncode, run("--quiet", *argv).returncode] == [1, 1]
    result = (tmp_path / "summary.md").read_text()
    assert result.startswith("# The job\n")
    assert result.count("## ❌ FAIL: mine") == 2
    assert "no. What to do: do it." in result
