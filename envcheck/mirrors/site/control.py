"""Start, watch and end a site's processes on a machine without containers; or hand them to docker compose.

Each process has a file of its own that says its number and when it began, so that no stranger is ever ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
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
from typing import Any, Final, Literal

from envcheck.errors import ConfigError, UnavailableError
from envcheck.mirrors.site.model import Site
from envcheck.mirrors.site.processes import began, orphans, send
from envcheck.mirrors.site.services import Part, parts

State = Literal["running", "silent", "ended", "not started", "not installed"]
_SECONDS: Final = 30.0
# The first that takes an env_file that may be absent.
_COMPOSE: Final = (2, 24)
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
    """Start every part that does not run. Raise UnavailableError where one is not installed or does not come up.

    Then nothing that this call started is left running.
    """
    _refuse_missing(site)
    with contextlib.ExitStack() as started:
        for part in parts(site):
            program = _program(part)
            if _pid(site, part.name) is not None or program is None:
                continue
            _end(site, part.name)  # what it left behind when it was killed, if that still has its port
            _refuse_taken(part)
            started.callback(_end, site, part.name)
            _start(site, part, program)
        started.pop_all()
    return status(site)


def reload(site: Site) -> None:
    """Have nginx read its configuration, its certificates and what was published anew, nobody's download broken off.

    Raise ConfigError where nginx does not take it: it then goes on as it was.
    """
    part = next(part for part in parts(site) if part.name == "nginx")
    pid, program = _pid(site, part.name), _program(part)
    if pid is None or program is None:
        message = "nginx does not run"
        raise UnavailableError(message, fix=f"run `envcheck mirror site up {site.root}`")
    judged = subprocess.run([*_argv(site, part, program), "-t"], capture_output=True, text=True, check=False)
    if judged.returncode != 0:
        message = f"nginx does not take it: {judged.stderr.strip().splitlines()[0]}"
        raise ConfigError(message, fix="mend it, or render it anew; until then it goes on as it was")
    _until(lambda: _read(Path(site.root, "run/nginx.pid")) == str(pid))  # before it has written that, a signal ends it
    send(pid, signal.SIGHUP, part.name)


def down(site: Site) -> list[str]:
    """End what `up` started, nginx first, and what it started before the site was rendered without it.

    Return the names. Waits until each is gone.
    """
    mine = [part.name for part in reversed(parts(site))]
    earlier = sorted(path.stem for path in Path(site.root, "run").glob("*.started") if path.stem not in mine)
    return [name for name in [*mine, *earlier] if _end(site, name)]


def status(site: Site) -> list[Status]:
    """Return what each part is doing now."""
    return [Status(part.name, _state(site, part), part.port, part.needs, part.optional) for part in parts(site)]


def compose(site: Site, *arguments: str) -> int:
    """Run docker compose on the site, what it says going where ours does; return its exit code."""
    return subprocess.run(_compose(site, *arguments), check=False, stdin=subprocess.DEVNULL).returncode


def compose_up(site: Site) -> list[Status]:
    """Have docker compose start the site, and return what each part is doing once all answer, or none is yet to."""
    if compose(site, "up", "--detach") != 0:
        message = "docker compose did not start the site"
        raise UnavailableError(message, fix="see above; name images that can be had here, as NGINX_IMAGE=...")
    deadline = time.monotonic() + _SECONDS
    while True:
        told = composed(site)
        if all(one.state == "running" for one in told) or time.monotonic() > deadline:
            return told
        time.sleep(_STEP * 10)


def composed(site: Site) -> list[Status]:
    """Return what each part is doing that docker compose has started."""
    done = subprocess.run(
        _compose(site, "ps", "--all", "--format", "json"), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        message = f"docker compose says nothing of the site: {done.stderr.strip()[-200:]}"
        raise UnavailableError(message, fix="see `docker compose ps`")
    states = {one["Service"]: one["State"] for one in _services(done.stdout)}
    return [Status(p.name, _contained(p, states.get(p.name)), p.port, p.needs, p.optional) for p in parts(site)]


def _services(text: str) -> list[dict[str, Any]]:
    """Return compose's services: a line each since 2.21, a list before."""
    read = [json.loads(line) for line in text.splitlines() if line.strip()]
    return [one for item in read for one in (item if isinstance(item, list) else [item])]


def _contained(part: Part, state: str | None) -> State:
    if state is None:
        return "not started"
    if state != "running":
        return "ended"
    return "running" if _answers(part) else "silent"


def _compose(site: Site, *arguments: str) -> list[str]:
    leave = "leave --compose out: the same parts run as plain processes"
    docker = shutil.which("docker")
    if docker is None:
        message = "no docker on this machine"
        raise UnavailableError(message, fix=leave)
    told = subprocess.run([docker, "compose", "version", "--short"], capture_output=True, text=True, check=False)
    version = told.stdout.strip().removeprefix("v")
    if told.returncode != 0 or not version:
        message = "this docker has no compose plugin"
        raise UnavailableError(message, fix=f"install docker-compose-plugin, or {leave}")
    numbers = [int(digits) for digits in version.split(".")[:2] if digits.isdecimal()]
    if tuple(numbers) < _COMPOSE:
        message = f"docker compose {version} is too old for the site's file"
        raise UnavailableError(message, fix=f"install 2.24 or newer, or {leave}")
    return [docker, "compose", "-f", f"{site.root}/compose.yaml", "-p", "envcheck-mirror", *arguments]


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
            env={**os.environ, **dict(part.environment)},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    _record(site, part.name).write_text(f"{process.pid} {began(process.pid)}\n")
    deadline = time.monotonic() + _SECONDS
    while not _answers(part):
        if process.poll() is not None or time.monotonic() > deadline:
            message = f"{part.name} does not come up: {_last(log, Path(site.root, 'logs/error.log'))}"
            offline = f"; where its upstream is cut off: `envcheck mirror site offline {site.root}`"
            raise UnavailableError(message, fix=f"see {log}{offline if part.name.startswith('registry-') else ''}")
        time.sleep(_STEP)


def _argv(site: Site, part: Part, program: str) -> list[str]:
    argv = [program, *part.argv[1:]]
    if part.name == "nginx" and os.geteuid() == 0:
        # Its workers must reach what lies below the site: they run as whoever owns it, if that one has a name.
        with contextlib.suppress(KeyError):
            argv[-1] += f" user {Path(site.root).owner()};"
    return argv


def _refuse_missing(site: Site) -> None:
    missing = [part for part in parts(site) if not part.optional and _program(part) is None]
    if missing:
        names = ", ".join(dict.fromkeys(part.needs for part in missing))
        without = {"olah": "--no-hf", "rclone": "--s3 left out"}
        fewer = [without[part.name] for part in missing if part.name in without]
        fix = f"install it{', or render with ' + ', '.join(fewer) if fewer else ''}; or --compose"
        message = f"not on this machine: {names}; nothing was started"
        raise UnavailableError(message, fix=fix)


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
    if _pid(site, part.name) is not None:
        return "running" if _answers(part) else "silent"
    if _record(site, part.name).exists():
        return "ended"
    return "not started" if _program(part) else "not installed"


def _record(site: Site, name: str) -> Path:
    return Path(site.root, "run", f"{name}.started")


def _pid(site: Site, name: str) -> int | None:
    """Return the number of the process that we started, or None where it is no more, or another has its number."""
    try:
        pid, since = _record(site, name).read_text().split()
    except (FileNotFoundError, ValueError):
        return None
    return int(pid) if since == began(int(pid)) else None


def _left(site: Site, name: str) -> dict[int, str]:
    """Return what a part that was killed left running: number -> when it began."""
    leader = _read(_record(site, name)).partition(" ")[0]
    return orphans(int(leader), Path(site.root)) if leader.isdecimal() else {}


def _end(site: Site, name: str) -> bool:
    """End a part and all that it started: it leads a session of its own."""
    pid = _pid(site, name)
    if pid is not None:
        send(pid, signal.SIGTERM, name)
        if not _gone(site, name):
            os.killpg(pid, signal.SIGKILL)
            _gone(site, name)
    left = _left(site, name)
    for how in (signal.SIGTERM, signal.SIGKILL):
        for one, since in left.items():
            if began(one) == since:
                send(one, how, name)
        if _until(lambda: not any(began(one) == since for one, since in left.items())):
            break
    _record(site, name).unlink(missing_ok=True)
    return pid is not None or bool(left)


def _gone(site: Site, name: str) -> bool:
    return _until(lambda: _pid(site, name) is None)


def _until(there: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + _SECONDS / 2
    while not there() and time.monotonic() < deadline:
        time.sleep(_STEP)
    return there()


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""


def _last(*logs: Path) -> str:
    """Return why a program ended: its last word of that, else the last line of the first log that has one."""
    for log in logs:
        lines = log.read_text(errors="replace").split("\n") if log.exists() else []
        said = [line for line in lines if line.strip()]
        told = next((line for line in reversed(said) if line.startswith("panic: ")), said[-1] if said else None)
        if told is not None:
            return shlex.quote(told[-300:])
    return "it said nothing"
