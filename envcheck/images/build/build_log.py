"""A build's whole log, and the error of a build that failed: its step, its last lines, the cause and what to do."""

from __future__ import annotations

from pathlib import Path

from envcheck.data import state_path
from envcheck.errors import BuildError
from envcheck.images.build import failure_causes
from envcheck.images.build.plan import BuildPlan


def require_success(plan: BuildPlan, status: int | None, output: str, timeout: float) -> Path | None:
    """Keep a build's log, and return where it is, if there was room for one.

    An exit status that is not 0, or None after `timeout` seconds, is a FailedError.
    """
    log = keep_log(log_path(f"{plan.cell}-{plan.target}"), output)
    if status != 0:
        ended = f"timed out after {timeout:.0f} s" if status is None else ""
        raise FailedError(plan.tag, f"{output}\n{ended}", log)
    return log


def log_path(name: str) -> Path:
    """Return where a build's whole log goes."""
    return state_path("logs") / f"{name}.log"


def keep_log(log: Path, text: str) -> Path | None:
    """Write a log, and return where it is; None where it cannot be written: that must not hide why a build failed."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(text, encoding="utf-8")
    except OSError:
        return None
    return log


class FailedError(BuildError):
    """A build that failed: one line names the cause and what to do; `detail` is the step and its last lines.

    `step` is named for a build that is not in a container, whose log does not tell its steps.
    """

    def __init__(self, name: str, text: str, log: Path | None, *, step: str | None = None) -> None:
        explanation = failure_causes.explain(text)
        cause = explanation.cause or failure_causes.Cause(
            "no known cause", "read its last lines above, or the whole log"
        )
        fix = cause.fix + ("" if step else cause.contained)
        where = f"log: {log}" if log else "no space left for the log"
        super().__init__(f"{name} could not be built: {cause.what} ({where})", fix=fix)
        self.log = log
        self.detail = [f"in {step or explanation.step}", *explanation.lines]
