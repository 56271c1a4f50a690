"""The files that start a finished image: compose, devcontainer.json, an Apptainer definition."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from envcheck.errors import ConfigError
from envcheck.images.formats import FORMATS, written
from tests.e2e.private_engine import CannotStartError, unpacked
from tests.images.formats.cells import CPU, CUDA, REPOSITORY, specs, text
from tests.processes import ran
from tests.tables import each

ONE = [name for name, form in FORMATS.items() if form.one]


@each("name", ONE)
def test_a_file_is_of_one_image_that_has_a_lock(name: str) -> None:
    with pytest.raises(ConfigError, match=f"--format {name} is of one target of one cell, and 2 are selected"):
        written(name, specs(CPU, CUDA), REPOSITORY)
    with pytest.raises(ConfigError, match=f"{CPU} has no lock; run `envcheck lock {CPU}`"):
        written(name, [msgspec.structs.replace(specs(CPU)[0], locks=[])], REPOSITORY)


def devices(compose: dict[str, Any]) -> Any:
    return compose["services"]["torch"]["deploy"]["resources"]["reservations"]["devices"]


@pytest.mark.parametrize("cell", [CPU, CUDA])
def test_compose_is_of_the_schema(cell: str, tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text(text("compose", cell))
    checker = [str(Path(sys.executable).with_name("check-jsonschema")), "--builtin-schema", "vendor.compose-spec"]
    completed = subprocess.run([*checker, str(tmp_path / "compose.yaml")], capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout
    (tmp_path / "compose.yaml").write_text(text("compose", cell).replace("shm_size", "shmsize"))
    assert subprocess.run([*checker, str(tmp_path / "compose.yaml")], capture_output=True, check=False).returncode == 1


@pytest.mark.engine
def test_compose_itself_reads_the_file_as_it_is_meant(tmp_path: Path) -> None:
    try:
        plugin: str | None = str(unpacked() / "usr/libexec/docker/cli-plugins/docker-compose")
    except CannotStartError:
        plugin = shutil.which("docker-compose")
    if plugin is None:
        pytest.skip("no compose on this machine")
    (tmp_path / "compose.yaml").write_text(text("compose", CUDA))
    completed = ran([plugin, "config", "--format", "json"], cwd=tmp_path, env={**os.environ, "RUN_AS": "4711:100"})
    assert completed.returncode == 0, completed.stderr
    service = (shown := json.loads(completed.stdout))["services"]["torch"]
    assert (service["image"], service["user"]) == (f"{REPOSITORY}:2.8.0-cu128-py312-runtime", "4711:100")
    assert service["shm_size"] == str(8 * 2**30)
    assert devices(shown)[0]["capabilities"] == ["gpu"]
    assert service["ulimits"] == {"memlock": -1}
    assert service["volumes"][0]["source"] == str(tmp_path)


@each(
    "repository, agent",
    [
        ("envcheck/torch", "docker-daemon"),
        ("torch", "docker-daemon"),
        ("registry.example/torch", "docker"),
        ("localhost/torch", "docker"),
        ("10.0.0.7:5000/torch", "docker"),
        ("gpu-registry:5000/ml/torch", "docker"),
    ],
)
def test_a_name_without_a_registry_is_an_image_of_the_local_engine(repository: str, agent: str) -> None:
    assert text("apptainer", CPU, repository).startswith(f"Bootstrap: {agent}\nFrom: {repository}:")


def test_an_apptainer_definition_has_each_promise_and_proves_them() -> None:
    shown = text("apptainer", CUDA)
    sections = dict(re.findall(r"(?ms)^%(\w+)\n(.*?)(?=^%|\Z)", shown))
    labels = dict(line.strip().split(" ", 1) for line in sections["labels"].strip().splitlines())
    assert labels == {f"envcheck.{name}": value for name, value in specs(CUDA)[0].promises.items()}
    assert "envcheck run --level static" in sections["test"]
    assert "--nv" in sections["help"]
    assert "--nv" not in text("apptainer", CPU)
