"""The one place of this stage that starts a process. It has little time to answer; what nothing ends is left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

_TIMEOUT: Final = 4.0
_MOST: Final = 200
_LARGEST: Final = 1 << 24
_GRACE: Final = 1.0  # what a process may need to die; one that waits in the kernel does not, and is not waited for


def output(
    tool: Path, *arguments: str, timeout: float = _TIMEOUT, environment: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Return what a tool prints; `environment` is set over this process's own.

    Raises OSError, saying why, where it cannot be started, fails, or takes longer than `timeout` seconds; then it is
    ended with all that it started.
    """
    # Files in memory: a pipe may be held open by what the tool has started, long after it has ended.
    with os.fdopen(os.memfd_create("stdout"), "w+b") as out, os.fdopen(os.memfd_create("stderr"), "w+b") as err:
        process = subprocess.Popen(
            [str(tool), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={**os.environ, "LC_ALL": "C", **environment},
            start_new_session=True,
        )
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(0, f"no answer in {timeout:g} s", str(tool)) from error
        finally:
            _end(process)
        stdout, errors = (file.read(_LARGEST) for file in (out, err) if not file.seek(0))
    if process.returncode < 0:
        raise OSError(0, f"died of {signal.Signals(-process.returncode).name}", str(tool))
    if process.returncode:
        last = errors.decode(errors="replace").strip().splitlines()[-1:]
        raise OSError(0, ": ".join([f"exit code {process.returncode}", *last])[:_MOST], str(tool))
    return stdout.decode(errors="replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE)
