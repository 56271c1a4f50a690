"""The engine of the tests is there for one command, and leaves nothing of itself behind."""

from __future__ import annotations

import os
import subprocess
import sys
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
def test_what_a_killed_start_left_is_ended_by_the_next() -> None:
    killed = run("exec", "--", "sh", "-c", 'echo "$DOCKER_HOST"; kill -9 $PPID')
    own = Path(killed.stdout.strip().removeprefix("unix://")).parent
    pid = int((own / "pid").read_text())
    assert Path(f"/proc/{pid}").exists()
    assert run("exec", "--", "true").returncode == 0
    assert not own.exists()
    assert not Path(f"/proc/{pid}/exe").exists()


@pytest.mark.usefixtures("startable")
def test_what_an_offered_engine_holds_is_there_for_the_next_offer(tmp_path: Path) -> None:
    none = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    name = f"envcheck/kept:{os.getpid()}"
    made = run("offer", "--", "sh", "-c", f"tar -c --files-from /dev/null | docker import - {name}", env=none)
    assert made.returncode == 0, made.stderr
    assert "make engine" in made.stderr
    found = run("offer", "--", "docker", "image", "rm", name, env=none)
    assert found.returncode == 0, found.stderr


def test_where_no_engine_can_be_the_command_is_run_all_the_same(tmp_path: Path) -> None:
    env = {**os.environ, "PATH": str(tmp_path), "DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    done = run("offer", "--", sys.executable, "-c", "print('ran')", env=env)
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "no private container engine: " in done.stderr
    assert run("exec", "--", sys.executable, "-c", "print('ran')", env=env).returncode == 3


def test_its_usage_is_told() -> None:
    assert run("start").returncode == 2
    assert run("exec", "--").returncode == 2
