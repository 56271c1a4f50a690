"""Processes by number and beginning, so that no stranger is ever taken for one of a site's own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from envcheck.errors import UnavailableError

# proc(5), /proc/PID/stat, counted from the state on.
_STATE: Final = 0
_SESSION: Final = 3
_BEGAN: Final = 19


def began(pid: int) -> str:
    """Return when a process began, in ticks since boot, or "" where it is gone or has ended."""
    fields = _stat(pid)
    return "" if not fields or fields[_STATE] in "ZX" else fields[_BEGAN]


def orphans(leader: int, root: Path) -> dict[int, str]:
    """Return what a killed process left of its session below a site's directory: number -> when it began.

    Every part is started in a session of its own, whose number nobody else gets while it has members. They work in
    the site's directory and are its own user's or ours; who has a living leader is nobody's orphan.
    """
    if began(leader):
        return {}
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
    return {pid: since for pid in pids if _member(pid, leader, root) and (since := began(pid))}


def _member(pid: int, session: int, root: Path) -> bool:
    fields = _stat(pid)
    if not fields or fields[_SESSION] != str(session):
        return False
    try:
        owner, works = Path(f"/proc/{pid}").stat().st_uid, Path(f"/proc/{pid}/cwd").readlink()
        return works == root.resolve() and owner in {os.geteuid(), root.stat().st_uid}
    except OSError:  # gone meanwhile, or not ours to look at
        return False


def send(pid: int, signal: int, name: str) -> None:
    """Send a signal to a site's part. Raise UnavailableError where that is another user's."""
    try:
        os.kill(pid, signal)
    except ProcessLookupError:
        return
    except PermissionError as error:
        message = f"{name} (process {pid}) is another user's: no signal of ours reaches it"
        raise UnavailableError(message, fix="do it as the user who started the site") from error


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
