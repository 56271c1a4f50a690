"""A run that was killed is gone on with where it stopped, and only where it is the same run."""

import dataclasses
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from envcheck.errors import ConfigError
from envcheck.node.snapshot import Signal, Snapshot
from envcheck.reports.model import RunReport, load, report_of, run_of, write
from envcheck.runner import outcomes
from envcheck.runner.execute import Run, Watcher, validate
from envcheck.runner.schema import TargetFacts
from tests.processes import ran
from tests.runner.conftest import AddCheck, RunSite
from tests.waiting import eventually

# The dearer check waits for a file; until then it can only be killed.
FIRST = "open({seen!r}, 'a').write('x')\nreturn {{}}"
WAITS = """
open({waiting!r}, 'w').close()
while not os.path.exists({go!r}): time.sleep(0.02)
return {{}}
"""


class Job:
    """One `envcheck run` over two checks: what it left, and what is started in its place."""

    def __init__(self, tmp_path: Path, site: Path) -> None:
        self.report, self.seen = tmp_path / "report.json", tmp_path / "seen"
        self.waiting, self.go = tmp_path / "waiting", tmp_path / "go"
        self.argv = [sys.executable, "-m", "envcheck", "run", "--python", sys.executable, "--checks", str(site)]
        self.argv += ["--only", "first", "--only", "waits", "--output", str(self.report)]

    def knows_first(self) -> bool:
        """Tell whether its report has the first check."""
        return self.report.exists() and bool(load(self.report).outcomes)

    def start(self, *more: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen([*self.argv, *more], stdout=pipe, stderr=pipe, text=True)

    def run(self, *more: str) -> subprocess.CompletedProcess[str]:
        return ran([*self.argv, *more])


@pytest.fixture
def job(tmp_path: Path, site: Path, add: AddCheck) -> Job:
    made = Job(tmp_path, site)
    add("first", FIRST.format(seen=str(made.seen)), "ranks=1, timeout=60")
    add("waits", WAITS.format(waiting=str(made.waiting), go=str(made.go)), "ranks=1, timeout=60")
    return made


@pytest.fixture
def killed(job: Job) -> Job:
    """Kill it with SIGKILL while its second check runs."""
    process = job.start()
    try:
        assert eventually(lambda: job.waiting.exists() and job.knows_first(), expected=True)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    job.go.touch()
    return job


def statuses(report: RunReport) -> dict[str, str]:
    return {outcome.id: outcome.status for outcome in report.outcomes}


def test_after_kill_9_what_was_known_is_kept_and_only_the_rest_is_run(killed: Job) -> None:
    before = load(killed.report)
    assert (before.ended, statuses(before), before.verdict.status) == ("", {"first": "pass"}, "error")
    done = killed.run("--resume")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "continuing" in done.stdout
    assert "1 of 2 checks done" in " ".join(done.stdout.split())
    after = load(killed.report)
    assert statuses(after) == {"first": "pass", "waits": "pass"}
    assert after.outcomes[0] == before.outcomes[0]
    assert (after.started, len(after.resumed), bool(after.ended)) == (before.started, 1, True)
    assert killed.seen.read_text() == "x"
    assert before.timing is not None
    assert after.timing is not None
    assert after.timing.taken > before.timing.taken


def test_another_torch_than_then_is_refused_in_one_line_and_the_report_stays_as_it_was(killed: Job) -> None:
    before = load(killed.report)
    other = structs.replace(before, environment={**before.environment, "torch": "2.4.1+cu121"})
    write(other, killed.report)
    kept = killed.report.read_bytes()
    done = killed.run("--resume")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert f"cannot resume {killed.report}: torch was 2.4.1+cu121, is none; leave --resume" in done.stderr
    assert killed.report.read_bytes() == kept
    assert killed.seen.read_text() == "x"


@pytest.fixture
def earlier(add: AddCheck, run_site: RunSite) -> tuple[Run, RunReport]:
    """Return a run of one check, and its report as if it had been cut short after it."""
    add("one", "return {}", "ranks=1")
    run = run_site(snapshot=NODE)
    return run, structs.replace(report_of(run), ended="")


NODE = Snapshot("then", {"driver.version": Signal("570.26")})


def going_on(run: Run, earlier: RunReport, **planned: Any) -> Run:
    """Return a run of the same, but for what is given, that goes on with an earlier one."""
    made = Run(dataclasses.replace(run.asked, plan=structs.replace(run.asked.plan, **planned)))
    made.go_on(run_of(earlier), Path("report.json"), (earlier.tool, earlier.tool))
    return made


@pytest.mark.parametrize(
    ("planned", "message"),
    [
        ({"nproc": 3}, "--nproc was 2, is 3"),
        ({"level": "quick"}, "--level was full, is quick"),
        ({"require_gpu": True}, "--require-gpu was False, is True"),
        ({"budget": 60.0}, "--budget was none, is 60.0"),
        ({"repeat": 2}, "--repeat was 1, is 2"),
        ({"checks": []}, "the checks differ by one"),
    ],
)
def test_another_plan_is_refused_saying_what_differs(
    earlier: tuple[Run, RunReport], planned: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=rf"cannot resume report\.json: {message}; leave --resume out"):
        going_on(*earlier, **planned)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": TargetFacts(kind="image", name="a", chosen="")}, "target was a, is "),
        ({"boot": "another"}, "the machine was rebooted since, or it is another machine"),
        ({"boot": ""}, "the machine was rebooted since, or it is another machine"),
        ({"ended": "2026-01-01"}, "is complete; leave --resume out"),
    ],
)
def test_another_target_or_boot_is_refused(
    earlier: tuple[Run, RunReport], changes: dict[str, Any], message: str
) -> None:
    run, report = earlier
    with pytest.raises(ConfigError, match=message):
        going_on(run, structs.replace(report, **changes))


def test_another_version_of_envcheck_is_refused(earlier: tuple[Run, RunReport]) -> None:
    run, report = earlier
    with pytest.raises(ConfigError, match=r"envcheck was .*, is 99"):
        Run(run.asked).go_on(run_of(report), Path("report.json"), (report.tool, "99"))


@pytest.mark.parametrize(
    ("driver", "gpus", "message"),
    [("580.65.06", [], "driver.version was 570.26, is 580.65.06"), ("570.26", [{"uuid": "GPU-1"}], "GPUs was GPU-1")],
)
def test_another_driver_or_gpu_is_found_once_it_runs_and_nobody_is_told(
    earlier: tuple[Run, RunReport], driver: str, gpus: list[dict[str, str]], message: str
) -> None:
    run, report = earlier
    before = structs.replace(report, environment={**report.environment, "devices": gpus}, outcomes=[])
    watcher = CallCounter()
    now = Snapshot("now", {"driver.version": Signal(driver)})
    with pytest.raises(ConfigError, match=message):
        validate(going_on(run, before), lambda: now, watcher)
    assert watcher.learnt == 0


class CallCounter(Watcher):
    """A watcher that counts its calls."""

    learnt = 0

    def learned(self, run: Run) -> None:  # noqa: ARG002 (the contract's)
        self.learnt += 1


def test_a_performance_that_fell_short_once_has_its_second_look_after_the_kill(
    add: AddCheck, run_site: RunSite
) -> None:
    judge = "def judge(view, ranks):\n    return too_slow('slow', fix='wait', value=1.0)\n"
    add("slow", "return {}", "ranks=1, performance=True", judge)
    run = run_site(snapshot=NODE)
    [row] = report_of(run).outcomes
    assert len(row.attempts) == 2
    once = structs.replace(row, attempts=row.attempts[:1])
    cut = structs.replace(report_of(run), ended="", outcomes=[once])
    repeated = going_on(run, cut)
    validate(repeated, lambda: NODE, CallCounter(), pause=0.0)
    assert [a.value for a in repeated.outcomes["slow"].attempts] == [1.0, 1.0]
    whole = going_on(run, structs.replace(cut, outcomes=[row]))
    validate(whole, lambda: NODE, CallCounter(), pause=0.0)
    assert whole.outcomes["slow"] == row


def test_a_repeated_run_goes_on_with_the_round_it_was_killed_in(add: AddCheck, run_site: RunSite) -> None:
    add("one", "return {}", "ranks=1")
    add("two", "return {}", "ranks=1")
    run = run_site(repeat=2, snapshot=NODE)
    two = run_site(repeat=1, snapshot=NODE).outcomes["two"]
    partly = [run.outcomes["one"], outcomes.fold(None, two)]
    repeated = going_on(run, structs.replace(report_of(run), ended="", outcomes=partly))
    assert (repeated.number, repeated.done) == (2, 1)
    watcher = CallCounter()
    validate(repeated, lambda: NODE, watcher, pause=0.0)
    assert [o.rounds for o in repeated.outcomes.values()] == [2, 2]
    assert repeated.outcomes["one"] == run.outcomes["one"]
