"""The bake file that another machine builds, also as buildx itself reads it."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from envcheck.images.build_context import write
from envcheck.images.formats import written
from envcheck.images.spec import ImageSpec
from envcheck.mirrors.profiles import load as profiles
from tests.e2e.private_engine import CannotStartError, unpacked
from tests.images.formats.cells import CPU, CUDA, REPOSITORY, specs
from tests.processes import ran


def baked(*cells: str) -> dict[str, Any]:
    return baked_specs(*specs(*cells))


def baked_specs(*given: ImageSpec) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(written("bake", given, REPOSITORY))
    return shown


def test_a_target_names_nothing_of_this_machine() -> None:
    target = baked(CPU)["target"]["torch2_13_0-cpu-py311-runtime"]
    assert target["network"] == "${NETWORK}"
    assert (target["context"], target["dockerfile"]) == (CPU, "Dockerfile")
    assert target["args"]["BASE"] == "debian:bookworm-slim"
    assert not {"output", "secret", "labels"} & target.keys()


def test_each_platform_has_a_context_a_tag_and_groups_of_its_own() -> None:
    """A context holds one platform's locks, promises and uv: of the other it would build what it does not promise."""
    (spec,) = specs(CPU)
    arm = msgspec.structs.replace(spec, arch="aarch64")
    two = json.loads(written("bake", [spec, arm], REPOSITORY))
    of = {name: target["platforms"] for name, target in two["target"].items()}
    name = "torch2_13_0-cpu-py311-runtime"
    assert of == {name: ["linux/amd64"], f"{name}-arm64": ["linux/arm64"]}
    assert [target["context"] for target in two["target"].values()] == [CPU, f"{CPU}-arm64"]
    assert two["target"][f"{name}-arm64"]["tags"] == ["${REPOSITORY}:2.13.0-cpu-py311-runtime-arm64"]
    groups = {group: held["targets"] for group, held in two["group"].items()}
    assert (groups["default"], groups["arm64"]) == ([name], [f"{name}-arm64"])
    assert groups["torch2_13_0-cpu-py311-arm64"] == groups["runtime-arm64"] == groups["arm64"]
    assert baked_specs(arm)["group"]["default"]["targets"] == [f"{name}-arm64"]


@pytest.fixture
def printed(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Return what buildx makes of the file in `tmp_path`, with variables of the environment."""
    try:
        plugin: str | None = str(unpacked() / "usr/libexec/docker/cli-plugins/docker-buildx")
    except CannotStartError:
        plugin = shutil.which("docker-buildx")
    if plugin is None:
        pytest.skip("no buildx on this machine")

    def call(*arguments: str, **environment: str) -> dict[str, Any]:
        completed = ran(
            [plugin, "bake", "-f", "docker-bake.json", "--print", *arguments],
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
