"""If envcheck dies, nothing it started lives on; if the worker dies, envcheck says so and nothing lives on either."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.runner.conftest import AddCheck, RunSite
from tests.waiting import eventually, runs

# A rank deaf to SIGTERM, with one child in its group and one that fled into a session of its own.
FAMILY = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sleeper = [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"]
near = subprocess.Popen(sleeper)
far = subprocess.Popen(sleeper, start_new_session=True)
pids = [os.getpid(), near.pid, far.pid]
"""
TELL = """
with open({file!r} + str(rank.rank), "w") as stream:
    json.dump(pids + [os.getppid()], stream)
os.rename({file!r} + str(rank.rank), {file!r} + str(rank.rank) + ".json")
"""


def started(site: Path, check: str) -> subprocess.Popen[bytes]:
    """Start a run of a check of the site, with report and scratch directory beside it; under nohup it has SIGINT."""
    at = site.parent
    (at / "scratch").mkdir(exist_ok=True)
    argv = [sys.executable, "-m", "envcheck", "run", "--python", sys.executable, "--checks", str(site)]
    return subprocess.Popen(
        ["env", "--default-signal=INT", *argv, "--only", check, "--output", str(at / "report.json")],
        env={**os.environ, "TMPDIR": str(at / "scratch")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def ended(pids: list[int], seconds: float) -> list[int]:
    return eventually(lambda: [pid for pid in pids if runs(pid)], [], seconds)


def family(directory: Path, ranks: int) -> list[int]:
    """Wait for the pids that so many ranks tell of."""
    files = [directory / f"pids{rank}.json" for rank in range(ranks)]
    assert eventually(lambda: all(f.exists() for f in files), expected=True)
    return [pid for f in files for pid in json.loads(f.read_text())]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_lives_on_when_envcheck_is_killed(
    add: AddCheck, site: Path, tmp_path: Path, number: signal.Signals
) -> None:
    add("hangs", FAMILY + TELL.format(file=str(tmp_path / "pids")) + "time.sleep(600)", "ranks=2, timeout=600")
    report, scratch = tmp_path / "report.json", tmp_path / "scratch"
    with started(site, "hangs") as process:
        pids = family(tmp_path, 2)
        assert eventually(report.exists, expected=True)
        assert all(runs(pid) for pid in pids)
        process.send_signal(number)
        process.wait(30)
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert ended(pids, 20.0) == []
    # What was known is on disk, and is no pass.
    kept = json.loads(report.read_text())
    assert kept["environment"]["executable"] == sys.executable
    assert (kept["verdict"]["status"], kept["verdict"]["exit_code"]) == ("error", 3)
    assert eventually(lambda: not any(scratch.iterdir()), expected=True)


@pytest.mark.thorough
def test_a_run_that_is_killed_at_any_moment_leaves_no_process_no_directory_and_no_pass(
    add: AddCheck, site: Path, tmp_path: Path
) -> None:
    add("lasts", "time.sleep(1)", "ranks=2, timeout=60")
    scratch, report = tmp_path / "scratch", tmp_path / "report.json"
    for moment in range(20):
        with started(site, "lasts") as process:
            time.sleep(0.1 * moment)
            process.kill()
        assert not eventually(lambda: any(str(tmp_path).encode() in one for one in processes()), expected=False)
        assert not eventually(lambda: any(scratch.glob("*/*/worker.log")), expected=False)
        assert not report.exists() or json.loads(report.read_text())["verdict"]["exit_code"] == 3
        report.unlink(missing_ok=True)


def processes() -> list[bytes]:
    """Return the command lines of all processes."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(file.read_bytes())
    return found


def test_ranks_die_with_their_parents_even_when_nobody_is_left_to_end_them(
    add: AddCheck, site: Path, tmp_path: Path
) -> None:
    add("hangs", FAMILY + TELL.format(file=str(tmp_path / "pids")) + "time.sleep(600)", "ranks=1, timeout=600")
    with started(site, "hangs") as process:
        rank, near, far, nursery = family(tmp_path, 1)
        guard = int(Path(f"/proc/{nursery}/stat").read_text().rpartition(")")[2].split()[1])
        process.send_signal(signal.SIGSTOP)  # so that it cannot see the guard die
        os.kill(guard, signal.SIGKILL)
        process.kill()
    left = ended([rank, nursery, guard], 2.0)
    for orphan in (near, far):
        os.kill(orphan, signal.SIGKILL)
    assert left == []


def test_what_a_check_leaves_behind_is_ended_with_it(add: AddCheck, run_site: RunSite, tmp_path: Path) -> None:
    add("leaves", FAMILY + TELL.format(file=str(tmp_path / "pids")) + "return {}", "ranks=2, timeout=60")
    # The next check finds the machine to itself.
    add(
        "next",
        f"return {{'left': [p for f in ({str(tmp_path / 'pids0.json')!r}, {str(tmp_path / 'pids1.json')!r})"
        " for p in json.load(open(f))[:3] if os.path.exists(f'/proc/{p}')]}",
    )
    run = run_site()
    assert run.outcomes["leaves"].status == "pass"
    assert run.outcomes["next"].ranks == [{"left": []}, {"left": []}]


@pytest.mark.parametrize("who", ["nursery", "guard"])
def test_a_killed_worker_is_an_error_of_every_unfinished_check(
    add: AddCheck, run_site: RunSite, tmp_path: Path, who: str
) -> None:
    add("a_good", "return {}")
    add(
        "b_murderer",
        FAMILY
        + TELL.format(file=str(tmp_path / "pids"))
        + "nursery = os.getppid()\n"
        + "guard = int(open(f'/proc/{nursery}/stat').read().rpartition(')')[2].split()[1])\n"
        + f"time.sleep(0.5)\nos.kill({who}, signal.SIGKILL)\ntime.sleep(600)",
        "ranks=1, timeout=60",
    )
    add("c_late", "return {}")
    run = run_site()
    assert run.outcomes["a-good"].status == "pass"
    for late in ("b-murderer", "c-late"):
        assert run.outcomes[late].status == "error"
        assert run.outcomes[late].summary.startswith("the worker died of SIGKILL")
    assert run.verdict.exit_code == 3
    *_, far, nursery = family(tmp_path, 1)
    # A guard that is SIGKILLed cannot follow what fled from its group; nothing else survives it.
    left = ended(family(tmp_path, 1), 2.0)
    os.kill(far, signal.SIGKILL) if far in left else None
    assert left in ([], [far] if who == "guard" else [])
    assert not runs(nursery)
