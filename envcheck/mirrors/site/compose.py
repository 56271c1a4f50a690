"""Start, watch and stop a site with docker compose."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from typing import Any, Final

from envcheck.errors import UnavailableError
from envcheck.mirrors.site.control import PartStatus, State, answers
from envcheck.mirrors.site.model import Site
from envcheck.mirrors.site.services import Part, parts

# The first version that allows an optional env_file.
_OLDEST: Final = (2, 24)
_SECONDS: Final = 30.0
_STEP: Final = 0.5


def run(site: Site, *arguments: str) -> int:
    """Run docker compose on the site with its output on ours; return its exit code."""
    return subprocess.run(_command(site, *arguments), check=False, stdin=subprocess.DEVNULL).returncode


def up(site: Site) -> list[PartStatus]:
    """Start the site with docker compose; return the status once all parts run, or after the timeout."""
    if run(site, "up", "--detach") != 0:
        message = "docker compose did not start the site"
        raise UnavailableError(
            message, fix="see the output above; set images that are available here, e.g. NGINX_IMAGE=..."
        )
    deadline = time.monotonic() + _SECONDS
    while True:
        statuses = status(site)
        if all(part.state == "running" for part in statuses) or time.monotonic() > deadline:
            return statuses
        time.sleep(_STEP)


def status(site: Site) -> list[PartStatus]:
    """Return the status of each part under docker compose."""
    done = subprocess.run(
        _command(site, "ps", "--all", "--format", "json"), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        message = f"docker compose cannot list the site's containers: {done.stderr.strip()[-200:]}"
        raise UnavailableError(message, fix="run `docker compose ps`")
    states = {service["Service"]: service["State"] for service in _services(done.stdout)}
    return [
        PartStatus(p.name, _container_state(p, states.get(p.name)), p.port, p.needs, p.optional) for p in parts(site)
    ]


def _services(text: str) -> list[dict[str, Any]]:
    """Return compose's services from its JSON: one document a line since 2.21, a list before."""
    read = [json.loads(line) for line in text.splitlines() if line.strip()]
    return [service for item in read for service in (item if isinstance(item, list) else [item])]


def _container_state(part: Part, state: str | None) -> State:
    if state is None:
        return "not started"
    if state != "running":
        return "ended"
    return "running" if answers(part) else "silent"


def _command(site: Site, *arguments: str) -> list[str]:
    leave = "run without --compose, which starts the parts as plain processes"
    docker = shutil.which("docker")
    if docker is None:
        message = "docker is not installed on this machine"
        raise UnavailableError(message, fix=leave)
    result = subprocess.run([docker, "compose", "version", "--short"], capture_output=True, text=True, check=False)
    version = result.stdout.strip().removeprefix("v")
    if result.returncode != 0 or not version:
        message = "this docker has no compose plugin"
        raise UnavailableError(message, fix=f"install docker-compose-plugin, or {leave}")
    numbers = [int(digits) for digits in version.split(".")[:2] if digits.isdecimal()]
    if tuple(numbers) < _OLDEST:
        message = f"docker compose {version} is too old for the site's file"
        raise UnavailableError(message, fix=f"install 2.24 or newer, or {leave}")
    return [docker, "compose", "-f", f"{site.root}/compose.yaml", "-p", "envcheck-mirror", *arguments]
