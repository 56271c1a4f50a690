"""Docker alone builds a clone, with a directory of wheels or with a mirror."""

import dataclasses
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import CELL, ROOT, Image, Machine, download
from tests.registries import docker_registry

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]


@dataclasses.dataclass(frozen=True)
class Clone:
    """What git has of this checkout, in a directory whose files only its owner may read."""

    path: Path
    machine: Machine
    base: str

    def build(self, tag: str, *options: str) -> subprocess.CompletedProcess[str]:
        """Build `runtime` as docs/images.md has it; no registry is asked for the base."""
        file = f"--file={self.path}/images/{CELL}/Dockerfile"
        own = (
            "--build-arg=SOURCE_DATE_EPOCH=0",
            f"--build-arg=BASE={self.base}",
            "--provenance=false",
            "--progress=plain",
            f"--tag={tag}",
        )
        return self.machine.docker("build", file, "--target=runtime", *own, *options, str(self.path))


@pytest.fixture(scope="module")
def clone(image: Image, machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    path = tmp_path_factory.mktemp("clone")
    before = os.umask(0o077)
    try:
        subprocess.run(["git", "-C", ROOT, "checkout-index", "--all", f"--prefix={path}/"], check=True)
    finally:
        os.umask(before)
    return Clone(path, machine, image.result["base"])


@pytest.fixture(scope="module")
def all_wheels(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("all-wheels")
    for lock in (ROOT / "images" / CELL / "torch.lock", ROOT / "templates/uv.lock"):
        download(lock, into)
    for wheel in wheels.iterdir():
        shutil.copy(wheel, into)
    return into


def test_with_a_directory_of_wheels_and_without_a_network(
    clone: Clone, image: Image, all_wheels: Path, tmp_path: Path
) -> None:
    done = clone.build("plain:1", "--network=none", f"--build-context=wheels={all_wheels}")
    assert done.returncode == 0, done.stderr
    assert "torch: used files-given" in done.stderr
    docker = clone.machine.docker
    program = "import torch, os; print(torch.__version__, os.getuid())"
    assert docker("run", "--rm", "plain:1", "python", "-c", program).stdout.split() == ["2.13.0+cpu", "1000"]
    # Both ways give the same promises, and envcheck, whose files only their owner may read in this clone.
    kept = [
        docker("run", "--rm", name, "cat", "/etc/envcheck/promises.json").stdout
        for name in ("plain:1", image.reference)
    ]
    assert kept[0] == kept[1] != ""
    package = "/opt/envcheck/lib/python3.11/site-packages/envcheck"
    modes = docker("run", "--rm", "plain:1", "stat", "-c", "%a %u", package, f"{package}/__main__.py").stdout
    assert modes.splitlines() == ["755 0", "644 0"]
    report = tmp_path / "report.json"
    done = clone.machine.envcheck("run", "--image", "plain:1", "--only", "image-promises", "--output", str(report))
    assert done.returncode == 0, done.stdout + done.stderr
    sets = {"contexts.wheels": all_wheels, "args.BASE": clone.base, "context": clone.path, "tags": "baked:1"}
    options = [f"--set=*.{name}={value}" for name, value in sets.items()]
    bake = ("--file", str(clone.path / "images/bake.json"), "--provenance=false", "--load", *options, f"{CELL}-runtime")
    done = docker("buildx", "bake", *bake)
    assert done.returncode == 0, done.stderr
    assert docker("run", "--rm", "baked:1", "cat", "/etc/envcheck/promises.json").stdout == kept[0]


def test_through_a_sites_mirror(clone: Clone, tmp_path: Path) -> None:
    machine, context = clone.machine, tmp_path / "context"
    assert machine.envcheck("render", CELL, "--mirror", "host", "--output", str(context)).returncode == 0
    site = {"mirror": context / "mirror", "uv": context / "bin"}
    options = [f"--build-context={name}={path}" for name, path in site.items()]
    done = clone.build("mirrored:1", "--network=host", f"--secret=id=netrc,src={machine.env['NETRC']}", *options)
    assert done.returncode == 0, done.stderr
    assert "base: used pypi-1" in done.stderr
    told = (
        machine.docker("image", "inspect", "mirrored:1").stdout
        + machine.docker("history", "--no-trunc", "mirrored:1").stdout
    )
    assert {name for name, canary in machine.canaries.items() if canary in told} == set()


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    with docker_registry(tmp_path) as address:
        yield address


def test_what_was_proven_is_pushed(image: Image, machine: Machine, registry: str) -> None:
    words = ("build", CELL, "--mirror", "host", "--engine", "docker", "--base", "bootstrap")
    done = machine.envcheck("--quiet", *words, "--push", f"{registry}/me/torch")
    assert done.returncode == 0, done.stderr
    pushed = done.stdout.splitlines()[-1].split()[-1]
    assert pushed.startswith(f"{registry}/me/torch@sha256:")
    assert machine.docker("pull", pushed).returncode == 0
    layers = [
        json.loads(machine.docker("image", "inspect", name).stdout)[0]["RootFS"] for name in (pushed, image.reference)
    ]
    assert layers[0] == layers[1]
    nobody = machine.envcheck(*words, "--push", "127.0.0.1:9/me/torch")
    assert (nobody.returncode, nobody.stderr.count("could not be pushed")) == (3, 1)
