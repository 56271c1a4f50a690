"""It runs the tests of each round and reads their reports; what comes next is a pure function of the results."""

import concurrent.futures
import contextlib
import functools
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec

from envcheck import safe_files
from envcheck.counting import printable
from envcheck.errors import refuse
from envcheck.fleet.files import FleetFile, read_files
from envcheck.fleet.hostlist import fold
from envcheck.fleet.one_report import BY_SEVERITY, NodeReport
from envcheck.fleet.pairs.diagnosis import Plan
from envcheck.fleet.pairs.results import ROLL_CALL, Diagnosis, GroupResult, GroupTest, NodeAnswer
from envcheck.fleet.summary import under_one_name
from envcheck.node.subprocesses import signal_quietly
from envcheck.reports.phrases import last_words
from envcheck.struct_types import know_types

_MOST_NAMED: Final = 5
_LONGEST: Final = 200


class LaunchResult(NamedTuple):
    """How a launch went: seconds since 1970 at its start and end, and its last line of output or why it ended."""

    started: float
    ended: float
    last_line: str


def result_of(test: GroupTest, files: Sequence[FleetFile], launched: LaunchResult) -> GroupResult:
    """Return what the reports of a test say together; a group of which a report is missing is undetermined."""
    read = [(file.node, file.report) for file in under_one_name(files, test.nodes) if file.report]
    worst = dict(sorted(read, key=lambda row: BY_SEVERITY.index(row[1].status)))
    by_node = {node: worst[node] for node in test.nodes if node in worst}
    answers = tuple(_answer(node, report, launched) for node, report in by_node.items())
    problems = [f"{Path(file.path).name}: {file.note}" for file in files if file.report is None]
    absent = ", ".join([node for node in test.nodes if node not in by_node][:_MOST_NAMED])
    why = "; ".join(filter(None, [*problems[:1], launched.last_line]))[:_LONGEST]
    unseen = printable(f"no report{f' of {absent}' if absent and by_node else ''}{f': {why}' if why else ''}")
    if test.step == ROLL_CALL:
        return GroupResult("undetermined" if absent else "pass", None, unseen, (), answers)
    faulty = tuple(gpu for answer in answers for gpu in answer.faulty_gpus)
    speeds = (
        check.value
        for report in by_node.values()
        for check in report.checks
        if check.check == "all-reduce-bandwidth" and check.value is not None and check.unit == "GB/s"
    )
    speed = min(speeds, default=None)
    reasons = {answer.status: f"{answer.node}: {answer.reason}" for answer in reversed(answers)}
    if "fail" in reasons:
        return GroupResult("fail", speed, reasons["fail"], faulty, answers)
    if absent or "undetermined" in reasons:
        why, heard = (unseen, ()) if absent else (reasons["undetermined"], answers)
        return GroupResult("undetermined", speed, why, (), heard)
    return GroupResult("pass", speed, "", faulty, answers)


def _answer(node: str, report: NodeReport, launched: LaunchResult) -> NodeAnswer:
    status = "undetermined" if report.status == "error" else report.status
    gpus = {check.gpu for check in report.checks if check.status == "fail" and check.gpu}
    reason = next((f"{check.check}: {check.summary}" for check in report.checks if check.status == "fail"), report.why)
    return NodeAnswer(
        node=node,
        status=status,
        reason=printable(reason)[:_LONGEST],
        gpus=len(report.gpus),
        driver=report.driver,
        kernel=report.configuration.get("host.kernel", ""),
        clock=_clock(report, launched),
        faulty_gpus=tuple(f"{node} {gpu}" for gpu in sorted(gpus)),
    )


def _clock(report: NodeReport, launched: LaunchResult) -> float | None:
    """Return how far a node's clock is ahead of this machine's, as far as the launch shows: 0 within its time."""
    if report.started is None or report.ended is None:
        return None
    return min(report.started - launched.started, 0.0) or max(report.ended - launched.ended, 0.0)


SLURM: Final = "srun --nodelist={nodes} --nodes={count} --ntasks-per-node=1 --overlap {command}"
# Each node by itself, and the nodes of a group together; both write {reports}/NODE.json.
ROLL_CALL_COMMAND: Final = "envcheck run --level quick --output {reports}/"
GROUP_COMMAND: Final = "envcheck fleet group --output {reports}/"
# Where groups meet on their first node: several run at the same time, and none may take another's port.
_PORTS: Final = range(20000, 30000)
# The command ends when envcheck does, however that ends: a test that nobody waits for would disturb the next one.
_TIED: Final = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15)  # PR_SET_PDEATHSIG, SIGTERM
if os.getppid() != int(sys.argv[1]):
    sys.exit(143)
os.execvp(sys.argv[2], sys.argv[2:])
"""
_LOG: Final = "launch.log"


class Launcher(NamedTuple):
    """How tests start: commands with {nodes}, {count}, {reports} and {command}; seconds for one test."""

    template: str
    folder: Path
    timeout: float

    def command(self, test: GroupTest, reports: Path) -> list[str]:
        """Return the words of the command for a test; no shell takes part."""
        places = {"{nodes}": fold(test.nodes), "{count}": str(len(test.nodes)), "{reports}": str(reports)}
        words = _filled((ROLL_CALL_COMMAND if test.step == ROLL_CALL else GROUP_COMMAND).split(), places)
        outer = shlex.split(self.template)
        at = outer.index("{command}")
        return [*_filled(outer[:at], places), *words, *_filled(outer[at + 1 :], places)]

    def run(self, test: GroupTest, stop: threading.Event) -> GroupResult:
        """Start a test, until its end, `stop` or the timeout, and return what its reports say."""
        self.folder.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{test.step.replace(' ', '-')}-", dir=self.folder))
        folder.chmod(0o755)
        began, port = time.time(), _PORTS[zlib.crc32(test.key.encode()) % len(_PORTS)]
        # By these the ranks of a group find each other; a launcher passes its environment on.
        meeting_point = {"MASTER_ADDR": test.nodes[0], "MASTER_PORT": str(port)}
        with (folder / _LOG).open("w+b") as log:
            why = _waited(self.command(test, folder), meeting_point, log.fileno(), self.timeout, stop)
            log.seek(max(0, log.seek(0, os.SEEK_END) - 4096))
            said = last_words(log.read().decode(errors="replace"))
        launched = LaunchResult(began, time.time(), why or said)
        return result_of(test, read_files([folder]), launched)


def checked(template: str) -> str:
    """Return a template; raise ConfigError for one that cannot start a command on nodes."""
    try:
        words = shlex.split(template)
    except ValueError as error:
        refuse(f"--launch: {error}", "close the quotation")
    if words.count("{command}") != 1 or "{nodes}" not in template:
        refuse("--launch needs {nodes} and, as a word of its own, {command}", f"write for example --launch '{SLURM}'")
    return template


def _filled(words: list[str], places: dict[str, str]) -> list[str]:
    return [functools.reduce(lambda text, place: text.replace(*place), places.items(), word) for word in words]


def _waited(command: list[str], extra: dict[str, str], log: int, timeout: float, stop: threading.Event) -> str:
    """Run a command to its end; return why it gave none, or ""."""
    try:
        tied = [sys.executable, "-I", "-c", _TIED, str(os.getpid()), *command]
        process = subprocess.Popen(
            tied,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **extra},
        )
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    deadline = time.monotonic() + timeout
    try:
        while process.poll() is None:
            if stop.wait(0.1) or time.monotonic() > deadline:
                return "interrupted" if stop.is_set() else f"no end within {timeout:g} s"
    finally:
        # srun passes the first signal on to its nodes.
        for number in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                signal_quietly(-process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(5)
    return ""


class PairsState(msgspec.Struct):
    """What the state file holds: which fleet, how its tests start, and the results by the key of their test."""

    nodes: str
    mode: str
    launch: str
    schema: Literal["envcheck/fleet-pairs-state/1"] = "envcheck/fleet-pairs-state/1"
    results: dict[str, GroupResult] = {}


know_types(PairsState)


def begin(path: Path, fresh: PairsState) -> PairsState:
    """Return the state of an earlier run of the same tests, else `fresh`; raise ConfigError for one of others."""
    if not path.exists():
        return fresh
    fix = "remove the file to begin anew, or give --state another one"
    try:
        state = msgspec.json.decode(safe_files.read_whole(path), type=PairsState)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        refuse(f"{path} is not a state of `fleet pairs`: {error}", fix)
    if (state.nodes, state.mode, state.launch) != (fresh.nodes, fresh.mode, fresh.launch):
        refuse(f"{path} has the results of other nodes, mode or launcher: {state.nodes[:60]}, {state.mode}", fix)
    return state


# Launch commands at one time on this machine; a round of more tests takes several turns.
AT_ONCE: Final = 64


def run_tests(
    plan: Plan, state: PairsState, path: Path, launcher: Launcher, say: Callable[[GroupTest, GroupResult], None]
) -> Diagnosis:
    """Run the tests that have no result yet; each result is kept before the next one counts, the file until the end."""
    try:
        tests = next(plan)
        while True:
            for test, result in _round([test for test in tests if test.key not in state.results], launcher):
                state.results[test.key] = result
                safe_files.replace(path, msgspec.json.encode(state))
                say(test, result)
            tests = plan.send([state.results[test.key] for test in tests])
    except StopIteration as ended:
        path.unlink(missing_ok=True)
        verdict: Diagnosis = ended.value
        return verdict


def _round(tests: Sequence[GroupTest], launcher: Launcher) -> Iterator[tuple[GroupTest, GroupResult]]:
    stop = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        running = {pool.submit(launcher.run, test, stop): test for test in tests}
        try:
            for done in concurrent.futures.as_completed(running):
                yield running[done], done.result()
        except BaseException:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
