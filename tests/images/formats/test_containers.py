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
import yaml

from envcheck.errors import ConfigError
from envcheck.images.formats import FORMATS, MOST_JOBS, written
from envcheck.images.lockfile import parse_requirements
from envcheck.images.spec import ImageSpec
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


def read(cell: str) -> tuple[dict[str, Any], list[str], list[str]]:
    """Return the whole file, conda's own packages and the lines for pip."""
    document: dict[str, Any] = yaml.safe_load(text("conda", cell))
    *own, last = document["dependencies"]
    return document, own, last["pip"]


@each("cell", [CPU, CUDA])
def test_pip_gets_the_lock_itself(cell: str) -> None:
    """Read back with the parser of requirements: each pin, and each of its hashes."""
    document, _, lines = read(cell)
    # What pip reads: conda writes the lines into a file of requirements as they are.
    requirements = "\n".join(line.replace(" --hash", " \\\n    --hash") for line in lines)
    lock = parse_requirements(requirements.encode(), "base", "environment.yml")
    assert lock.pins == [pin for group in specs(cell)[0].locks for pin in group.pins if pin.name != "pip"]
    assert document["name"] == cell
    assert document["channels"] == ["conda-forge", "nodefaults"]


def test_only_a_lock_of_the_pytorch_index_names_an_index() -> None:
    assert [line for line in read(CPU)[2] if line.startswith("-")] == [
        "--extra-index-url https://download.pytorch.org/whl/cpu"
    ]
    assert not [line for line in read(CUDA)[2] if line.startswith("-")]


def test_conda_knows_the_cuda_of_the_wheel_and_its_lowest_gpu() -> None:
    assert read(CUDA)[1] == ["python=3.12", "pip", "cuda-version=12.8", "cuda-arch=7.0"]
    assert read(CPU)[1] == ["python=3.11", "pip"]


def spec() -> ImageSpec:
    return specs(CPU)[0]


def test_a_job_says_all_that_a_workflow_needs_on_one_line() -> None:
    text = written("github", [spec(), msgspec.structs.replace(spec(), arch="aarch64")], REPOSITORY)
    assert text.count("\n") == 1
    assert json.loads(text)["include"][1] == {
        "cell": "torch2.13.0-cpu-py311",
        "target": "runtime",
        "platform": "linux/arm64",
        "runner": "ubuntu-24.04-arm",
        "tag": "registry.example/ml/torch:2.13.0-cpu-py311-runtime",
        "torch": "2.13.0",
        "variant": "cpu",
        "python": "3.11",
    }


def test_more_jobs_than_github_takes_are_refused() -> None:
    assert len(json.loads(written("github", [spec()] * MOST_JOBS, REPOSITORY))["include"]) == MOST_JOBS
    with pytest.raises(ConfigError, match="257 jobs, and GitHub takes 256"):
        written("github", [spec()] * (MOST_JOBS + 1), REPOSITORY)
