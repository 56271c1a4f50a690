"""The files that start a finished image: compose, devcontainer.json, an Apptainer definition."""

import contextlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from envcheck.errors import ConfigError
from envcheck.images.build_context import write
from envcheck.images.formats import FORMATS, MOST_JOBS, written
from envcheck.images.lockfile import parse_requirements
from envcheck.images.spec import ImageSpec, load_spec, select
from envcheck.matrix.file.load import load
from envcheck.mirrors.profiles import load as profiles
from tests.e2e.private_engine import CannotStartError, unpacked
from tests.processes import ran
from tests.tables import each

ONE = [name for name, form in FORMATS.items() if form.one]
REPOSITORY = "registry.example/ml/torch"
CPU, CUDA = "torch2.13.0-cpu-py311", "torch2.8.0-cu128-py312"


def specs(*cells: str) -> list[ImageSpec]:
    matrix = load()
    return [load_spec(matrix, cell) for cell in select(matrix, cells)]


def text(name: str, cell: str, repository: str = REPOSITORY) -> str:
    return written(name, specs(cell), repository)


@each("name", ONE)
def test_a_file_is_of_one_image_that_has_a_lock(name: str) -> None:
    with pytest.raises(ConfigError, match=f"--format {name} is of one target of one cell, and 2 are selected"):
        written(name, specs(CPU, CUDA), REPOSITORY)
    with pytest.raises(ConfigError, match=f"{CPU} has no lock; run `envcheck lock {CPU}`"):
        written(name, [msgspec.structs.replace(specs(CPU)[0], locks=[])], REPOSITORY)


def plugin(name: str) -> str:
    with contextlib.suppress(CannotStartError):
        return str(unpacked() / "usr/libexec/docker/cli-plugins" / name)
    return shutil.which(name) or pytest.skip(f"no {name} on this machine")


def devices(compose: dict[str, Any]) -> Any:
    return compose["services"]["torch"]["deploy"]["resources"]["reservations"]["devices"]


@pytest.mark.parametrize("cell", [CPU, CUDA])
def test_compose_is_of_the_schema(cell: str, tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text(text("compose", cell))
    checker = [str(Path(sys.executable).with_name("check-jsonschema")), "--builtin-schema", "vendor.compose-spec"]
    completed = ran([*checker, str(tmp_path / "compose.yaml")])
    assert completed.returncode == 0, completed.stdout


@pytest.mark.engine
def test_compose_itself_reads_the_file_as_it_is_meant(tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text(text("compose", CUDA))
    completed = ran(
        [plugin("docker-compose"), "config", "--format", "json"], cwd=tmp_path, env={**os.environ, "RUN_AS": "4711:100"}
    )
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


def test_a_job_says_all_that_a_workflow_needs_on_one_line() -> None:
    (spec,) = specs(CPU)
    jobs = written("github", [spec, msgspec.structs.replace(spec, arch="aarch64")], REPOSITORY)
    assert jobs.count("\n") == 1
    assert json.loads(jobs)["include"][1] == {
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
    assert len(json.loads(written("github", specs(CPU) * MOST_JOBS, REPOSITORY))["include"]) == MOST_JOBS
    with pytest.raises(ConfigError, match="257 jobs, and GitHub takes 256"):
        written("github", specs(CPU) * (MOST_JOBS + 1), REPOSITORY)


def baked(*given: ImageSpec) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(written("bake", given, REPOSITORY))
    return shown


def test_each_platform_has_a_context_a_tag_and_groups_of_its_own() -> None:
    """A context holds one platform's locks, promises and uv: of the other it would build what it does not promise."""
    (spec,) = specs(CPU)
    arm = msgspec.structs.replace(spec, arch="aarch64")
    two = baked(spec, arm)
    of = {name: target["platforms"] for name, target in two["target"].items()}
    name = "torch2_13_0-cpu-py311-runtime"
    assert of == {name: ["linux/amd64"], f"{name}-arm64": ["linux/arm64"]}
    assert [target["context"] for target in two["target"].values()] == [CPU, f"{CPU}-arm64"]
    assert two["target"][f"{name}-arm64"]["tags"] == ["${REPOSITORY}:2.13.0-cpu-py311-runtime-arm64"]
    groups = {group: held["targets"] for group, held in two["group"].items()}
    assert (groups["default"], groups["arm64"]) == ([name], [f"{name}-arm64"])
    assert groups["torch2_13_0-cpu-py311-arm64"] == groups["runtime-arm64"] == groups["arm64"]
    assert baked(arm)["group"]["default"]["targets"] == [f"{name}-arm64"]


@pytest.fixture
def printed(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Return what buildx makes of the file in `tmp_path`, with variables of the environment."""
    buildx = plugin("docker-buildx")

    def call(*arguments: str, **environment: str) -> dict[str, Any]:
        completed = ran(
            [buildx, "bake", "-f", "docker-bake.json", "--print", *arguments],
            cwd=tmp_path,
            env={**os.environ, "DOCKER_CONFIG": str(tmp_path), **environment},
        )
        assert completed.returncode == 0, completed.stderr
        shown: dict[str, Any] = json.loads(completed.stdout)
        return shown

    return call


@pytest.mark.engine
def test_buildx_reads_the_file_as_it_is_meant(printed: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "docker-bake.json").write_text(written("bake", specs(CPU, CUDA), REPOSITORY))
    write(specs(CPU), profiles.load("none"), tmp_path / CPU)
    everything = printed()
    assert len(everything["group"]["default"]["targets"]) == 2
    shown = printed("torch2_13_0-cpu-py311", REVISION="abc", REPOSITORY="me/torch")["target"]
    # buildx 0.13 takes no network from a file and does not print it.
    assert shown["torch2_13_0-cpu-py311-runtime"].pop("network", "default") == "default"
    assert shown == {
        "torch2_13_0-cpu-py311-runtime": {
            "context": CPU,
            "dockerfile": "Dockerfile",
            "args": {"BASE": "debian:bookworm-slim", "REVISION": "abc", "SOURCE_DATE_EPOCH": "0"},
            "target": "runtime",
            "platforms": ["linux/amd64"],
            "tags": ["me/torch:2.13.0-cpu-py311-runtime"],
        }
    }
    assert (tmp_path / shown["torch2_13_0-cpu-py311-runtime"]["context"] / "Dockerfile").is_file()
    loopback = printed("default", "--set", "*.secrets=id=netrc,src=/dev/null", NETWORK="host")["target"]
    assert {target.get("network", "host") for target in loopback.values()} == {"host"}
    assert all("id=netrc" in target["secret"][0] for target in loopback.values())
    assert printed("runtime")["target"].keys() == everything["target"].keys()
    assert everything["target"]["torch2_8_0-cu128-py312-runtime"]["tags"] == [
        "registry.example/ml/torch:2.8.0-cu128-py312-runtime"
    ]
