"""envcheck build: what is refused, with which exit code and which one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def nowhere(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which no engine answers."""
    return {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/no.sock", "ENVCHECK_HOME": str(tmp_path)}


def build(env: dict[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "envcheck", "build", *args]
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("torch9.9.9-cpu-py311", "--engine", "venv"), 2, "no published cell is called 'torch9.9.9-cpu-py311'"),
        (("torch2.13.0-cpu-py312", "--engine", "venv"), 2, "did you mean torch2.13.0-cpu-py311"),
        (("torch2*", "--engine", "venv"), 2, "build one at a time"),
        (("torch2.13.0-cpu-py311", "--engine", "venv", "--mirror", "nosuch"), 2, "no mirror profile 'nosuch'"),
        (("torch2.13.0-cpu-py311", "--engine", "docker"), 3, "no docker engine answers"),
        (("torch2.13.0-cpu-py311", "--engine", "docker", "--dry-run"), 3, "no docker engine answers"),
    ],
)
def test_what_cannot_be_built_is_one_line(
    nowhere: dict[str, str], arguments: tuple[str, ...], status: int, said: str
) -> None:
    done = build(nowhere, *arguments)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.count("\n") == 1
    assert said in done.stderr


def test_a_cell_without_a_lock_is_refused_with_what_to_do(nowhere: dict[str, str], tmp_path: Path) -> None:
    done = build(nowhere, "torch2.13.0-cpu-py311", "--engine", "venv", "--images", str(tmp_path))
    assert done.returncode == 2
    assert "has no lock; run `envcheck lock torch2.13.0-cpu-py311`" in done.stderr


def test_a_directory_of_someone_else_is_not_taken(nowhere: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    done = build(nowhere, "torch2.13.0-cpu-py311", "--engine", "venv", "--dest", str(tmp_path))
    if "no Python 3.11" in done.stderr:
        pytest.skip("Python 3.11 is not on this machine")
    assert done.returncode == 2
    assert "was not made by envcheck build" in done.stderr
    assert (tmp_path / "mine").read_text() == "x"


def test_the_plan_of_an_environment_is_printed_and_nothing_made(nowhere: dict[str, str], tmp_path: Path) -> None:
    dest = tmp_path / "env"
    done = build(nowhere, "torch2.13.0-cpu-py311", "--engine", "venv", "--dest", str(dest), "--dry-run")
    if "no Python 3.11" in done.stderr:
        pytest.skip("Python 3.11 is not on this machine")
    assert done.returncode == 0
    assert f"path    {dest}" in done.stdout
    assert "install 1 packages of torch.lock" in done.stdout
    assert not dest.exists()
