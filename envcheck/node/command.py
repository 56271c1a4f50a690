"""The one place of this stage that starts a process: a tool is asked for its version, and has little time to answer."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

_TIMEOUT: Final = 5.0


def output(tool: Path, *arguments: str, timeout: float = _TIMEOUT) -> str:
    """Return what a tool prints. Raises OSError, saying why, where it cannot be started, fails, or takes too long."""
    try:
        done = subprocess.run(
            [str(tool), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(0, f"no answer in {timeout:g} s", str(tool)) from error
    if done.returncode:
        raise OSError(0, f"exit code {done.returncode}", str(tool))
    return done.stdout.decode(errors="replace")
