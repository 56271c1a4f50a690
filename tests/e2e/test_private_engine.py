"""The engine of the tests is there for one command, and leaves nothing of itself behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e import private_engine
from tests.e2e.private_engine import CannotStartError, unpacked

pytestmark = pytest.mark.engine
SCRIPT = [sys.executable, private_engine.__file__]


@pytest.fixture
def startable() -> None:
    """Skip where this machine can have no engine of ours."""
    try:
        unpacked()
    except CannotStartError as error:
        pytest.skip(str(error))


def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SCRIPT, *arguments], env=env, capture_output=True, text=True, check=False)


def bridges() -> set[str]:
    return {path.parent.name for path in Path("/sys/class/net").glob("*/bridge")}


@pytest.mark.usefixtures("startable")
def test_it_is_there_for_a_command_and_gone_after_it() -> None:
    before = bridges()
    show = 'echo "$DOCKER_HOST"; docker version --format "{{.Server.Version}}"; docker buildx version; exit 7'
    done = run("exec", "--", "sh", "-c", show)
    assert done.returncode == 7, done.stderr
    host, version, buildx = done.stdout.splitlines()
    assert int(version.partition(".")[0]) >= 23
    assert "buildx" in buildx
    own = Path(host.removeprefix("unix://")).parent
    assert not own.exists()
    assert str(own) not in Path("/proc/mounts").read_text()
    assert not {name for name in bridges() - before if name.startswith("envcheck")}


@pytest.mark.usefixtures("startable")
@pytest.mark.parametrize(("how", "signal"), [("exec", "TERM"), ("offer", "KILL")])
def test_a_killed_start_leaves_no_engine_mount_or_bridge(tmp_path: Path, how: str, signal: str) -> None:
    before = bridges()
    none = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    # A container's root is mounted below the data root, which `offer` keeps.
    make = "tar -c --files-from /dev/null | docker import - envcheck/empty:1 >/dev/null"
    killed = run(how, "--", "sh", "-c", f'echo "$DOCKER_HOST"; {make}; kill -{signal} $PPID; sleep 1', env=none)
    own = Path(killed.stdout.strip().removeprefix("unix://")).parent
    deadline = time.monotonic() + 120
    while own.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not own.exists()
    mounted = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    assert not [point for point in mounted if point.startswith((str(own), str(private_engine.CACHE / "data")))]
    while bridges() - before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not {name for name in bridges() - before if name.startswith("envcheck")}


@pytest.mark.usefixtures("startable")
def test_what_an_offered_engine_holds_is_there_for_the_next_offer(tmp_path: Path) -> None:
    none = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    name = f"envcheck/kept:{os.getpid()}"
    made = run("offer", "--", "sh", "-c", f"tar -c --files-from /dev/null | docker import - {name}", env=none)
    assert made.returncode == 0, made.stderr
    assert "make engine" in made.stderr
    actual = run("offer", "--", "docker", "image", "rm", name, env=none)
    assert actual.returncode == 0, actual.stderr


def test_where_no_engine_can_be_the_command_is_run_all_the_same(tmp_path: Path) -> None:
    env = {**os.environ, "PATH": str(tmp_path), "DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    done = run("offer", "--", sys.executable, "-c", "print('ran')", env=env)
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "no private container engine: " in done.stderr
    assert run("exec", "--", sys.executable, "-c", "print('ran')", env=env).returncode == 3
