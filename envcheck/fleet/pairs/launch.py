"""The one place of `fleet pairs` that starts a process: the command that starts a test on its nodes."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from pathlib import Path
from typing import Final, NamedTuple

from envcheck.errors import ConfigError
from envcheck.fleet.hostlist import fold
from envcheck.fleet.pairs.group_reports import LaunchResult, read_reports, result_of
from envcheck.fleet.pairs.model import ROLL_CALL, GroupResult, GroupTest

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
_LOOK: Final = 0.1
_GRACE: Final = 5.0
_LOG: Final = "launch.log"
_TAIL: Final = 4096


class Launcher(NamedTuple):
    """How tests are started: commands with {nodes}, {count}, {reports} and {command}; `folder` holds the reports.

    `timeout` is in seconds for one test.
    """

    template: str
    roll_call: str
    group: str
    folder: Path
    timeout: float

    def command(self, test: GroupTest, reports: Path) -> list[str]:
        """Return the words of the command for a test; no shell takes part."""
        places = {"{nodes}": fold(test.nodes), "{count}": str(len(test.nodes)), "{reports}": str(reports)}
        inner = self.roll_call if test.step == ROLL_CALL else self.group
        words = _filled(shlex.split(inner), places)
        outer = shlex.split(self.template)
        at = outer.index("{command}")
        return [*_filled(outer[:at], places), *words, *_filled(outer[at + 1 :], places)]

    def run(self, test: GroupTest, stop: threading.Event) -> GroupResult:
        """Start a test and return what its reports say; without an end in time it is undetermined.

        `stop` ends it early. What it started on this machine ends with it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{test.step.replace(' ', '-')}-", dir=self.folder))
        folder.chmod(0o755)
        began = time.time()
        with (folder / _LOG).open("wb") as log:
            why = _waited(self.command(test, folder), meeting_point(test), log.fileno(), self.timeout, stop)
        reports, problems = read_reports(folder)
        launched = LaunchResult(began, time.time(), why or _last_line(folder / _LOG))
        return result_of(test, reports, problems, launched)


def meeting_point(test: GroupTest) -> dict[str, str]:
    """Return the variables by which the ranks of a group find each other; a launcher passes its environment on."""
    port = _PORTS[zlib.crc32(test.key.encode()) % len(_PORTS)]
    return {"MASTER_ADDR": test.nodes[0], "MASTER_PORT": str(port)}


def checked(template: str) -> str:
    """Return a template; raise ConfigError for one that cannot start a command on nodes."""
    try:
        words = shlex.split(template)
    except ValueError as error:
        message = f"--launch: {error}"
        raise ConfigError(message, fix="close the quotation") from error
    if words.count("{command}") != 1 or "{nodes}" not in template:
        message = "--launch needs {nodes} and, as a word of its own, {command}"
        raise ConfigError(message, fix=f"write for example --launch '{SLURM}'")
    return template


def _filled(words: list[str], places: dict[str, str]) -> list[str]:
    filled = []
    for word in words:
        text = word
        for name, value in places.items():
            text = text.replace(name, value)
        filled.append(text)
    return filled


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
            if stop.wait(_LOOK) or time.monotonic() > deadline:
                return "interrupted" if stop.is_set() else f"no end within {timeout:g} s"
    finally:
        _end(process)
    return ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command and what it started: srun passes the first signal on to its nodes."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)


def _last_line(log: Path) -> str:
    with log.open("rb") as stream:
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - _TAIL))
        lines = stream.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
