"""Start a program that has little time, and end all that a supervisor started. Standard library only, Python >= 3.9.

What waits in the kernel is ended by nothing, and is left behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Optional

_ROOT = Path(__file__).absolute().parents[2]  # in a foreign interpreter the staging's, beside which nothing lies
_TIMEOUT = 4.0
_MOST = 200
_TICK = 0.2
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_GRACE = 1.0  # what a process may need to die; one that waits in the kernel does not, and is not waited for
_survivors: set[int] = set()  # in uninterruptible sleep, as a broken driver leaves them: named once, then left


class FinishedProcess(NamedTuple):
    """How a program ended: its exit code (None: it was ended for taking too long), and what it wrote."""

    code: Optional[int]  # noqa: UP045 (Python 3.9 evaluates the fields of a NamedTuple)
    output: str
    errors: str


def run(
    command: Sequence[str],
    seconds: float,
    grace: float = 20.0,
    environment: Mapping[str, str] | None = None,
    *,
    group: bool = False,
) -> FinishedProcess:
    """Run a program for at most so long; then it is interrupted as by Ctrl-C, and killed if that does not end it.

    `environment` are its variables, None for this process's. As a `group` of its own it ends with all that it started;
    else it stays in the caller's.
    """
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        list(command), stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=environment, start_new_session=group
    )
    code, output, errors = None, b"", b""
    try:
        output, errors = _printed(process, seconds)
        code = process.returncode
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            output, errors = _printed(process, grace)
    finally:
        _end(process, group=group)
    return FinishedProcess(code, output.decode(errors="replace"), errors.decode(errors="replace"))


def output(
    tool: Path, *arguments: str, timeout: float = _TIMEOUT, environment: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Return what a tool prints; an OSError says why it cannot be started, fails, or takes longer than `timeout`."""
    done = run([str(tool), *arguments], timeout, 0.0, {**os.environ, "LC_ALL": "C", **environment}, group=True)
    if done.code is None:
        raise TimeoutError(0, f"no answer in {timeout:g} s", str(tool))
    if done.code < 0:
        raise OSError(0, f"died of {signal.Signals(-done.code).name}", str(tool))
    if done.code:
        raise OSError(
            0, ": ".join([f"exit code {done.code}", *done.errors.strip().splitlines()[-1:]])[:_MOST], str(tool)
        )
    return done.output


def of_envcheck(module: str, call: str) -> tuple[list[str], dict[str, str]]:
    """Return command and environment of a process that makes a call in our module; a json.py of the cwd is not ours."""
    code = f"import sys\nsys.path[:] = [place for place in sys.path if place]\nimport {module}\n{module}.{call}"
    # An empty entry would be the working directory again.
    places = [str(_ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return [sys.executable, "-c", code], {**os.environ, "PYTHONPATH": os.pathsep.join(places)}


def _printed(process: subprocess.Popen[bytes], seconds: float) -> tuple[bytes, bytes]:
    """Return what a process prints until it ends; what it has started may hold its pipes open for longer."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return process.communicate(timeout=min(_TICK, max(0.0, deadline - time.monotonic())))
        except subprocess.TimeoutExpired as so_far:  # noqa: PERF203 (it waits)
            if process.poll() is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):  # what it wrote last is still in the pipe
                    return process.communicate(timeout=_TICK)
                return so_far.stdout or b"", so_far.stderr or b""
            if time.monotonic() > deadline:
                raise


def _end(process: subprocess.Popen[bytes], *, group: bool) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL) if group else process.kill()
    for pipe in filter(None, (process.stdout, process.stderr)):
        pipe.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE)


def die_with_parent(parent: int) -> None:
    """Have the kernel SIGKILL this process when `parent` dies, even if it has died already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def die_first() -> None:
    """Have the kernel end this process before what shares its memory: the one above it, or another user's job."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, whatever session it fled to."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children(pid: int) -> list[int]:
    """Return the direct children of `pid`, zombies included."""
    pids = [int(process.name) for process in Path("/proc").glob("[0-9]*")]
    return [child for child in pids if int(stat(child)[1]) == pid]


def state(pid: int) -> str:
    """Return the kernel's letter for what `pid` is doing ("D": uninterruptible), or "?"."""
    return stat(pid)[0]


def stat(pid: int | str) -> list[str]:
    """Return the fields of /proc/PID/stat after the command's name; "?" and no parent for a process that is gone."""
    # The command's name is in parentheses and may hold anything, parentheses too.
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ["?", "0"]


def has_children() -> bool:
    """Reap every child that has ended; return whether any is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def end_descendants(limit: float) -> list[int]:
    """SIGKILL everything below this process for up to `limit` seconds; return what survived it and was not known to."""
    deadline = time.monotonic() + limit
    while has_children():
        left = [pid for pid in children(os.getpid()) if pid not in _survivors]
        if not left or time.monotonic() > deadline:
            _survivors.update(left)
            return left
        for pid in left:
            signal_quietly(pid, signal.SIGKILL)
        time.sleep(0.01)
    return []


def signal_quietly(pid: int, number: int) -> None:
    """Send a signal to a process (or, below zero, a group) that may be gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
