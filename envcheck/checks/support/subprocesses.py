"""The one place of the checks that starts a program: with a hard limit, in the rank's own group, which ends as one."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_GRACE = 20.0


class FinishedProcess(NamedTuple):
    """How a program ended: its exit code (None: it was ended for taking too long), and what it wrote."""

    code: int | None
    output: str
    errors: str


def run(
    command: Sequence[str], seconds: float, grace: float = _GRACE, environment: Mapping[str, str] | None = None
) -> FinishedProcess:
    """Run a program for at most so long; then it is interrupted as by Ctrl-C, and killed if that does not end it.

    `environment` are its variables, None for this process's.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(
        list(command), stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=environment
    ) as process:
        try:
            output, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            return _ended(process, grace)
    return FinishedProcess(process.returncode, output.decode(errors="replace"), errors.decode(errors="replace"))


def _ended(process: subprocess.Popen[bytes], grace: float) -> FinishedProcess:
    try:
        output, errors = process.communicate(timeout=grace)
    except subprocess.TimeoutExpired:
        process.kill()
        return FinishedProcess(None, "", "")
    return FinishedProcess(None, output.decode(errors="replace"), errors.decode(errors="replace"))
