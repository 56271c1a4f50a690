"""Start, watch and stop a site's processes, without containers.

A file for each process has its PID and start time, so that no other process is ever stopped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

from envcheck.errors import ConfigError, UnavailableError
from envcheck.mirrors.site.model import Site
from envcheck.mirrors.site.processes import orphans, send_signal, start_time
from envcheck.mirrors.site.services import Part, parts

State = Literal["running", "silent", "ended", "not started", "not installed"]
_SECONDS: Final = 30.0
_STEP: Final = 0.05


@dataclasses.dataclass(frozen=True)
class PartStatus:
    """The status of one part. `silent`: it runs, but its port does not answer."""

    name: str
    state: State
    port: int
    needs: str
    optional: bool


def up(site: Site) -> list[PartStatus]:
    """Start every part that does not run. Raise UnavailableError if one is not installed or does not start.

    After a failure, stop all parts that this call started.
    """
    _refuse_missing(site)
    with contextlib.ExitStack() as started:
        for part in parts(site):
            program = _program(part)
            if _pid(site, part.name) is not None or program is None:
                continue
            _stop(site, part.name)  # orphans of an earlier, killed process may still use the port
            _refuse_used_port(part)
            started.callback(_stop, site, part.name)
            _start(site, part, program)
        started.pop_all()
    return status(site)


def reload(site: Site) -> None:
    """Make nginx reload its configuration, its certificates and released trees, without interrupting downloads.

    Raise ConfigError if nginx rejects the configuration; it then keeps the old one.
    """
    part = next(part for part in parts(site) if part.name == "nginx")
    pid, program = _pid(site, part.name), _program(part)
    if pid is None or program is None:
        message = "nginx is not running"
        raise UnavailableError(message, fix=f"run `envcheck mirror site up {site.root}`")
    check = subprocess.run([*_argv(site, part, program), "-t"], capture_output=True, text=True, check=False)
    if check.returncode != 0:
        message = f"nginx rejects its configuration: {check.stderr.strip().splitlines()[0]}"
        raise ConfigError(message, fix="correct it, or render the site again; until then nginx keeps the old one")
    _wait_for(
        lambda: _read(Path(site.root, "run/nginx.pid")) == str(pid)
    )  # before nginx writes the file, a signal stops it
    send_signal(pid, signal.SIGHUP, part.name)


def down(site: Site) -> list[str]:
    """Stop all parts that `up` started, nginx first, also those that the site no longer has.

    Wait until each one has ended; return the names.
    """
    names = [part.name for part in reversed(parts(site))]
    earlier = sorted(path.stem for path in Path(site.root, "run").glob("*.started") if path.stem not in names)
    return [name for name in [*names, *earlier] if _stop(site, name)]


def status(site: Site) -> list[PartStatus]:
    """Return the current status of each part."""
    return [PartStatus(part.name, _state(site, part), part.port, part.needs, part.optional) for part in parts(site)]


def _program(part: Part) -> str | None:
    if part.argv[0] == "python3":
        return sys.executable
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin"
    return shutil.which(part.argv[0], path=path)


def _start(site: Site, part: Part, program: str) -> None:
    log = Path(site.root, "logs", f"{part.name}.log")
    with log.open("ab") as out:
        process = subprocess.Popen(
            _argv(site, part, program),
            cwd=site.root,
            env={**os.environ, **dict(part.environment)},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    _record(site, part.name).write_text(f"{process.pid} {start_time(process.pid)}\n")
    deadline = time.monotonic() + _SECONDS
    while not answers(part):
        if process.poll() is not None or time.monotonic() > deadline:
            message = f"{part.name} does not start: {_last_message(log, Path(site.root, 'logs/error.log'))}"
            offline = f"; if its upstream is unreachable, run `envcheck mirror site offline {site.root}`"
            raise UnavailableError(message, fix=f"see {log}{offline if part.name.startswith('registry-') else ''}")
        time.sleep(_STEP)


def _argv(site: Site, part: Part, program: str) -> list[str]:
    argv = [program, *part.argv[1:]]
    if part.name == "nginx" and os.geteuid() == 0:
        # The workers must read the site's files, so they run as the owner of its directory, if that user has a name.
        with contextlib.suppress(KeyError):
            argv[-1] += f" user {Path(site.root).owner()};"
    return argv


def _refuse_missing(site: Site) -> None:
    missing = [part for part in parts(site) if not part.optional and _program(part) is None]
    if missing:
        names = ", ".join(dict.fromkeys(part.needs for part in missing))
        without = {"olah": "--no-hf", "rclone": "no --s3"}
        fewer = [without[part.name] for part in missing if part.name in without]
        fix = f"install it{', or render with ' + ', '.join(fewer) if fewer else ''}; or --compose"
        message = f"not installed: {names}; no part was started"
        raise UnavailableError(message, fix=fix)


def _refuse_used_port(part: Part) -> None:
    if answers(part):
        message = f"{part.name}: another process listens on port {part.port}"
        raise ConfigError(message, fix="render the site with another --port")


def answers(part: Part) -> bool:
    """Tell whether something accepts connections on the part's port."""
    try:
        socket.create_connection((part.address, part.port), timeout=1).close()
    except OSError:
        return False
    return True


def _state(site: Site, part: Part) -> State:
    if _pid(site, part.name) is not None:
        return "running" if answers(part) else "silent"
    if _record(site, part.name).exists():
        return "ended"
    return "not started" if _program(part) else "not installed"


def _record(site: Site, name: str) -> Path:
    return Path(site.root, "run", f"{name}.started")


def _pid(site: Site, name: str) -> int | None:
    """Return the PID of the process that `up` started, or None if it has ended or its PID was reused."""
    try:
        pid, since = _record(site, name).read_text().split()
    except (FileNotFoundError, ValueError):
        return None
    return int(pid) if since == start_time(int(pid)) else None


def _orphans_of(site: Site, name: str) -> dict[int, str]:
    """Return the processes that remain of a killed part: PID -> start time."""
    leader = _read(_record(site, name)).partition(" ")[0]
    return orphans(int(leader), Path(site.root)) if leader.isdecimal() else {}


def _stop(site: Site, name: str) -> bool:
    """Stop a part and all processes that it started; it is the leader of its own session."""
    pid = _pid(site, name)
    if pid is not None:
        send_signal(pid, signal.SIGTERM, name)
        if not _wait_until_ended(site, name):
            os.killpg(pid, signal.SIGKILL)
            _wait_until_ended(site, name)
    orphans_left = _orphans_of(site, name)
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        for orphan, since in orphans_left.items():
            if start_time(orphan) == since:
                send_signal(orphan, signal_number, name)
        if _wait_for(lambda: not any(start_time(orphan) == since for orphan, since in orphans_left.items())):
            break
    _record(site, name).unlink(missing_ok=True)
    return pid is not None or bool(orphans_left)


def _wait_until_ended(site: Site, name: str) -> bool:
    return _wait_for(lambda: _pid(site, name) is None)


def _wait_for(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + _SECONDS / 2
    while not condition() and time.monotonic() < deadline:
        time.sleep(_STEP)
    return condition()


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""


def _last_message(*logs: Path) -> str:
    """Return why a program ended: its last panic, else the last line of the first log that is not empty."""
    for log in logs:
        lines = log.read_text(errors="replace").split("\n") if log.exists() else []
        written = [line for line in lines if line.strip()]
        message = next(
            (line for line in reversed(written) if line.startswith("panic: ")), written[-1] if written else None
        )
        if message is not None:
            return shlex.quote(message[-300:])
    return "no output"
