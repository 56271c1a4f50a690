"""Start, watch and end a site's processes on a machine without containers; or hand them to docker compose.

Each process has a file of its own that says its number and when it began, so that no stranger is ever ended.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, Literal

from envcheck.errors import ConfigError, UnavailableError
from envcheck.mirrors.site.model import Site
from envcheck.mirrors.site.parts import Part, parts

State = Literal["running", "silent", "ended", "not started", "not installed"]
_SECONDS: Final = 30.0
_STEP: Final = 0.05


@dataclasses.dataclass(frozen=True)
class Status:
    """What one part is doing. `silent`: it runs, and nothing answers at its port."""

    name: str
    state: State
    port: int
    needs: str
    optional: bool


def up(site: Site) -> list[Status]:
    """Start every part that is installed and not running. Raise UnavailableError where one does not come up."""
    began = []
    for part in parts(site):
        program = _program(part)
        if _pid(site, part) is not None or program is None:
            continue
        _refuse_taken(part)
        began.append(part)
        try:
            _start(site, part, program)
        except UnavailableError:
            for one in reversed(began):
                _end(site, one)
            raise
    return status(site)


def down(site: Site) -> list[str]:
    """End what `up` started, nginx first; return the names. Waits until each is gone."""
    return [part.name for part in reversed(parts(site)) if _end(site, part)]


def status(site: Site) -> list[Status]:
    """Return what each part is doing now."""
    return [Status(part.name, _state(site, part), part.port, part.needs, part.optional) for part in parts(site)]


def compose(site: Site, *arguments: str) -> int:
    """Run docker compose on the site, what it says going where ours does; return its exit code."""
    if shutil.which("docker") is None:
        message = "no docker on this machine"
        raise UnavailableError(message, fix="leave --compose out: the same parts run as plain processes")
    command = ["docker", "compose", "-f", f"{site.root}/compose.yaml", "-p", "envcheck-mirror", *arguments]
    return subprocess.run(command, check=False, stdin=subprocess.DEVNULL).returncode


def _program(part: Part) -> str | None:
    if part.argv[0] == "python3":
        return sys.executable
    beside = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin"
    return shutil.which(part.argv[0], path=beside)


def _start(site: Site, part: Part, program: str) -> None:
    log = Path(site.root, "logs", f"{part.name}.log")
    with log.open("ab") as out:
        process = subprocess.Popen(
            _argv(site, part, program),
            cwd=site.root,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    _record(site, part).write_text(f"{process.pid} {_began(process.pid)}\n")
    deadline = time.monotonic() + _SECONDS
    while not _answers(part):
        if process.poll() is not None or time.monotonic() > deadline:
            message = f"{part.name} does not come up: {_last(log, Path(site.root, 'logs/error.log'))}"
            raise UnavailableError(message, fix=f"see {log}")
        time.sleep(_STEP)


def _argv(site: Site, part: Part, program: str) -> list[str]:
    argv = [program, *part.argv[1:]]
    if part.name == "nginx" and os.geteuid() == 0:
        # Its workers must reach what lies below the site: they run as whoever owns it.
        argv[-1] += f" user {Path(site.root).owner()};"
    return argv


def _refuse_taken(part: Part) -> None:
    if _answers(part):
        message = f"{part.name}: somebody else listens on port {part.port}"
        raise ConfigError(message, fix="render the site with another --port")


def _answers(part: Part) -> bool:
    try:
        socket.create_connection((part.address, part.port), timeout=1).close()
    except OSError:
        return False
    return True


def _state(site: Site, part: Part) -> State:
    if _pid(site, part) is not None:
        return "running" if _answers(part) else "silent"
    if _record(site, part).exists():
        return "ended"
    return "not started" if _program(part) else "not installed"


def _record(site: Site, part: Part) -> Path:
    return Path(site.root, "run", f"{part.name}.started")


def _pid(site: Site, part: Part) -> int | None:
    """Return the number of the process that we started, or None where it is no more, or another has its number."""
    try:
        pid, began = _record(site, part).read_text().split()
    except (FileNotFoundError, ValueError):
        return None
    return int(pid) if began == _began(int(pid)) else None


def _began(pid: int) -> str:
    """Return when a process began, in ticks since boot, or "" where it is gone or has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _end(site: Site, part: Part) -> bool:
    """End a part and all that it started: it leads a session of its own."""
    pid = _pid(site, part)
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
        if not _gone(site, part):
            os.killpg(pid, signal.SIGKILL)
            _gone(site, part)
    _record(site, part).unlink(missing_ok=True)
    return pid is not None


def _gone(site: Site, part: Part) -> bool:
    deadline = time.monotonic() + _SECONDS / 2
    while _pid(site, part) is not None and time.monotonic() < deadline:
        time.sleep(_STEP)
    return _pid(site, part) is None


def _last(*logs: Path) -> str:
    """Return the last line of the first log that has one."""
    for log in logs:
        lines = log.read_text(errors="replace").split("\n") if log.exists() else []
        told = next((line for line in reversed(lines) if line.strip()), None)
        if told is not None:
            return shlex.quote(told[-300:])
    return "it said nothing"
