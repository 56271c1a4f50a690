"""Publish and promote, cut off or killed anywhere: nothing half-made counts, and the next completes it.

Cut off after each request that writes: what is read in between changes nothing in the registry, so that these are all
the states that a kill can leave. And killed for real, as processes of their own, at each of the first ten requests,
which the registry carries out or not.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.http_server import Answer, Request, Servers
from tests.registry.oci.fakes import FakeRegistry
from tests.registry.site import Site

ROOT = Path(__file__).parents[2]


def words_and_name(command: str, site: Site, word: str) -> tuple[list[str], str]:
    """Return the words of a command about a new image, and the name that can be pulled once it has done its work."""
    image, signed = site.image(word), ["--key", str(site.folder / "release")]
    name = f"{site.name}@{image.digest}"
    if command == "publish":
        return ["publish", name, "--report", str(site.report(image)), *signed], name
    site.attach(image)
    policy = ["--policy", str(site.write_policy("rejudge = false\n"))]
    return ["promote", name, "--to", "stable", *policy, *signed], f"{site.name}:stable"


@pytest.mark.parametrize("command", ["publish", "promote"])
def test_a_command_that_is_cut_off_anywhere_proves_nothing_and_the_next_completes_it(
    command: str, servers: Servers, tmp_path: Path
) -> None:
    registry = servers.start(FakeRegistry())
    writes, status = 0, 3
    while status:
        site, left = Site(registry.netloc, tmp_path), [writes]
        registry.fault = lambda _: None
        words, name = words_and_name(command, site, f"cut off after {writes} of {command}")

        def cut(request: Request, left: list[int] = left) -> Answer | None:
            left[0] -= request.method not in ("GET", "HEAD")
            return Answer(403) if left[0] < 0 else None

        registry.fault = cut
        status, _ = site.run(*words)
        registry.fault = lambda _: None
        if status:
            assert site.run("pull", name, "--policy", site.policy, "--dry-run")[0] == 1
            assert site.run(*words)[0] == 0
        assert site.run("pull", name, "--policy", site.policy, "--dry-run")[0] == 0
        writes += 1
        registry.tags.clear()
    assert writes >= 4


@pytest.mark.thorough
@pytest.mark.parametrize("command", ["publish", "promote"])
def test_a_command_that_is_killed_at_any_request_leaves_nothing_half_made(
    command: str, servers: Servers, tmp_path: Path
) -> None:
    registry = servers.start(FakeRegistry())
    for number in range(20):
        site = Site(registry.netloc, tmp_path)
        registry.fault = lambda _: None
        words, name = words_and_name(command, site, f"killed at {number} of {command}")
        argv, environment = [sys.executable, "-m", "envcheck", *words], {**os.environ, "PYTHONPATH": str(ROOT)}
        before = len(registry.requests)

        def kill(_request: Request, last: int = before + number // 2, lost: int = number % 2) -> Answer | None:
            if len(registry.requests) <= last:
                return None
            os.kill(running.pid, signal.SIGKILL)
            return Answer(500) if lost else None

        with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as running:
            registry.fault = kill
            said, _ = running.communicate()
        registry.fault = lambda _: None
        assert running.returncode == -signal.SIGKILL, (number, said)
        pull = ("pull", name, "--policy", site.policy, "--dry-run")
        status, output = site.run(*pull)
        assert (status in (0, 1), "tampered" in output or "dangling" in output) == (True, False), output
        assert site.run(*words)[0] == site.run(*pull)[0] == 0
        registry.tags.clear()
