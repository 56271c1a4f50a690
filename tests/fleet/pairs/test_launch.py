"""`envcheck fleet pairs` as a user runs it: commands start, reports are read, a killed run goes on."""

import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from click.testing import CliRunner

from envcheck.cli import cli
from envcheck.fleet.pairs.launch import SLURM, PairsState
from tests.waiting import eventually

HERE = Path(__file__).parent
REPORT = HERE.parents[1] / "data/reports/h200x1.json"


class Bench(NamedTuple):
    """A directory with a fake fleet."""

    folder: Path

    def command(self, nodes: str, *options: str) -> list[str]:
        words = [sys.executable, str(HERE / "fake_launch.py"), str(REPORT), str(self.folder / "faults.json")]
        launch = f"{shlex.join(words)} {{nodes}} {{command}}"
        base = [sys.executable, "-m", "envcheck", "fleet", "pairs", "--nodes", nodes, "--launch", launch]
        return [*base, "--state", str(self.folder / "state.json"), *options]

    def plant(self, **faults: list[str]) -> None:
        (self.folder / "faults.json").write_text(json.dumps({"log": str(self.folder / "log"), **faults}))

    def verdict(self, nodes: str, *options: str) -> dict[str, Any]:
        """Return the verdict of a run, which the exit code has to agree with."""
        done = subprocess.run(self.command(nodes, "--json", *options), capture_output=True, text=True, check=False)
        verdict: dict[str, Any] = json.loads(done.stdout or "{}")["verdict"]
        assert verdict["exit_code"] == done.returncode, done.stderr
        return verdict

    def log(self) -> list[str]:
        return (self.folder / "log").read_text().splitlines() if (self.folder / "log").exists() else []


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    made.plant()
    return made


def test_the_slow_and_the_missing_node_are_named_and_a_sound_fleet_passes(bench: Bench) -> None:
    verdict = bench.verdict("n[1-4]")
    assert (verdict["status"], verdict["good"], verdict["blame"]) == ("pass", "n[1-4]", [])
    assert len(bench.log()) == 1 + 6, "every pair has met"
    bench.plant(slow=["n3"], dead=["n5"])
    verdict = bench.verdict("n[1-5]")
    [blame] = verdict["blame"]
    assert (blame["kind"], blame["who"], len(blame["by"])) == ("node", "n3", 3)
    assert "190 GB/s, 50% of what other groups reach" in blame["reason"]
    assert (verdict["good"], [row["nodes"] for row in verdict["undetermined"]]) == ("n[1-2,4]", [["n5"]])


def test_a_run_that_was_killed_goes_on_and_repeats_no_test(bench: Bench) -> None:
    bench.plant(slow=["n3"])
    running = subprocess.Popen(bench.command("n[1-6]", "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while len(bench.log()) < 5:
        assert running.poll() is None
        time.sleep(0.02)
    running.send_signal(signal.SIGKILL)
    running.communicate()
    kept = len(json.loads((bench.folder / "state.json").read_text())["results"])
    before = len(bench.log())
    verdict = bench.verdict("n[1-6]")
    assert [blame["who"] for blame in verdict["blame"]] == ["n3"]
    # 15 pairs, 5 of them twice, and the roll-call.
    assert len(bench.log()) - before == 21 - kept
    assert kept >= 1


def test_what_hangs_ends_in_time_and_by_an_interrupt_and_is_no_fault(bench: Bench) -> None:
    bench.plant(hang=["n1"])
    verdict = bench.verdict("n[1-2]", "--timeout", "4s")
    assert (verdict["exit_code"], verdict["blame"]) == (3, [])
    assert "no end within 4 s" in verdict["undetermined"][0]["reason"]
    before = len(bench.log())
    # A shell's background job, as CI may be one, ignores the interrupt, and so would what it starts.
    command = ["env", "--default-signal=INT", *bench.command("n[1-2]")]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert eventually(lambda: len(bench.log()), before + 2) == before + 2
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=30)
    assert running.returncode == 130
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(bench.folder / "faults.json") not in left


def test_an_error_that_lets_no_launch_start_is_said_once_and_nothing_passes(bench: Bench) -> None:
    launch = shlex.join(["sh", "-c", "echo srun: fatal: no cluster; exit 1", "sh", "{nodes}", "{command}"])
    done = subprocess.run(bench.command("n[1-64]", "--launch", launch), capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr == "  roll-call n1..n64 (64 nodes): undetermined: no report: srun: fatal: no cluster\n"
    assert done.stdout.splitlines()[1:] == [
        "undetermined: n[1-64]: no report: srun: fatal: no cluster",
        "    by: roll-call",
        "use now: no node",
    ]


def test_a_state_of_other_nodes_is_refused_and_a_dry_run_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("other.json").write_bytes(msgspec.json.encode(PairsState("n[1-6]", "tournament", SLURM)))
    words = ["--nodes", "n[1-5]", "--launch", "{command} {nodes}", "--state", "other.json"]
    assert "other nodes" in str(CliRunner().invoke(cli, ["fleet", "pairs", *words]).exception)
    planned = CliRunner().invoke(cli, ["fleet", "pairs", "--nodes", "n[1-1024]", "--dry-run"]).stdout
    assert ("--level quick --output" in planned, "envcheck fleet group --output" in planned) == (True, True)
    more = ["--python", "/opt/a b", "--image", "site/torch:1", "--require-gpu", "--dry-run"]
    commands = CliRunner().invoke(cli, ["fleet", "pairs", "--nodes", "n[1-2]", *more]).stdout.splitlines()
    ends = [line.endswith("/ --python '/opt/a b' --image site/torch:1 --require-gpu") for line in commands]
    assert ends == [True, True], commands
    assert [path.name for path in tmp_path.iterdir()] == ["other.json"]
