"""The one place of this stage that starts a process. It has little time to answer; what nothing ends is left."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

_TIMEOUT = 4.0
_MOST = 200
_TICK = 0.2
_GRACE = 1.0  # what a process may need to die; one that waits in the kernel does not, and is not waited for


def output(
    tool: Path, *arguments: str, timeout: float = _TIMEOUT, environment: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Return what a tool prints; `environment` is set over this process's own.

    Raises OSError, saying why, where it cannot be started, fails, or takes longer than `timeout` seconds; then it is
    ended with all that it started.
    """
    process = subprocess.Popen(
        [str(tool), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "LC_ALL": "C", **environment},
        start_new_session=True,
    )
    deadline = time.monotonic() + timeout
    try:
        stdout, errors = _printed(process, deadline)
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(0, f"no answer in {timeout:g} s", str(tool)) from error
    finally:
        _end(process)
    if process.returncode < 0:
        raise OSError(0, f"died of {signal.Signals(-process.returncode).name}", str(tool))
    if process.returncode:
        last = errors.decode(errors="replace").strip().splitlines()[-1:]
        raise OSError(0, ": ".join([f"exit code {process.returncode}", *last])[:_MOST], str(tool))
    return stdout.decode(errors="replace")


def _printed(process: subprocess.Popen[bytes], deadline: float) -> tuple[bytes, bytes]:
    """Return what a process prints until it ends; what it has started may hold its pipes open for longer."""
    while True:
        try:
            return process.communicate(timeout=min(_TICK, max(0.0, deadline - time.monotonic())))
        except subprocess.TimeoutExpired as so_far:  # noqa: PERF203 (it waits)
            if process.poll() is not None:
                return so_far.stdout or b"", so_far.stderr or b""
            if time.monotonic() > deadline:
                raise


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in filter(None, (process.stdout, process.stderr)):
        pipe.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE)
