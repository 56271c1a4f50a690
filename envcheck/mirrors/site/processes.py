"""Identify processes by PID and start time, so that a reused PID is never taken for a site's process.

The start time is in ticks since boot. psutil's `create_time` adds the time of boot to it, which moves when the clock is
set (psutil pull request 2544): a later `down` would not know its own processes any more.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from envcheck.errors import UnavailableError

# Fields of /proc/PID/stat, counted from the state; see proc(5).
_STATE: Final = 0
_SESSION: Final = 3
_START_TIME: Final = 19


def start_time(pid: int) -> str:
    """Return the start time of a process in ticks since boot, or "" if it does not exist or has ended."""
    fields = _stat(pid)
    return "" if not fields or fields[_STATE] in "ZX" else fields[_START_TIME]


def orphans(leader: int, root: Path) -> dict[int, str]:
    """Return the processes that remain of a killed leader's session: PID -> start time.

    Every part runs in its own session, whose number is not reused while it has members. The members have the site's
    directory as working directory, and belong to its owner or to this user. A living leader has no orphans.
    """
    if start_time(leader):
        return {}
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
    return {pid: since for pid in pids if _belongs_to_session(pid, leader, root) and (since := start_time(pid))}


def _belongs_to_session(pid: int, session: int, root: Path) -> bool:
    fields = _stat(pid)
    if not fields or fields[_SESSION] != str(session):
        return False
    try:
        owner, works = Path(f"/proc/{pid}").stat().st_uid, Path(f"/proc/{pid}/cwd").readlink()
        return works == root.resolve() and owner in {os.geteuid(), root.stat().st_uid}
    except OSError:  # it has ended, or this user may not read it
        return False


def send_signal(pid: int, signal: int, name: str) -> None:
    """Send a signal to a site's part. Raise UnavailableError if it belongs to another user."""
    try:
        os.kill(pid, signal)
    except ProcessLookupError:
        return
    except PermissionError as error:
        message = f"{name} (process {pid}) belongs to another user"
        raise UnavailableError(message, fix="run the command as the user who started the site") from error


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
