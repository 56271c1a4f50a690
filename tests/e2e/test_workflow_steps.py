"""The steps of images.yml on a real engine and a real registry: build, stage by digest, validate, gate."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import CELL, ROOT, Image, Machine

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return host:port of a registry of the distribution."""
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("no docker-registry here (`make test` unpacks it where apt is)")
    scratch = tmp_path_factory.mktemp("registry")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    config = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(scratch / "data")}},
        "http": {"addr": address},
    }
    (scratch / "registry.yml").write_text(json.dumps(config))
    with (scratch / "registry.log").open("w") as log:
        process = subprocess.Popen([program, "serve", str(scratch / "registry.yml")], stdout=log, stderr=log)
        try:
            _answers(address)
            yield address
        finally:
            process.terminate()
            process.wait(30)


def _answers(address: str) -> None:
    host, _, port = address.partition(":")
    for _ in range(300):
        with socket.socket() as tried:
            if tried.connect_ex((host, int(port))) == 0:
                return
        time.sleep(0.1)
    pytest.fail("the registry does not answer")


def step(machine: Machine, at: Path, name: str, **env: str) -> tuple[subprocess.CompletedProcess[str], dict[str, str]]:
    """Run a step as a workflow does, and return it with what it told GitHub."""
    output = at / f"{name}.output"
    own = {"STATE": str(at), "GITHUB_OUTPUT": str(output), "GITHUB_WORKSPACE": str(at), "GITHUB_SHA": "c0ffee"}
    done = subprocess.run(
        ["make", "--silent", "--old-file=tool", name],
        env={**machine.env, **own, **env},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=1000,
    )
    lines = output.read_text().splitlines() if output.exists() else []
    return done, dict(line.split("=", 1) for line in lines)


def test_an_image_goes_from_its_cell_to_the_gate(registry: str, image: Image, machine: Machine, tmp_path: Path) -> None:
    cell = {"CELL": CELL, "TARGET": "runtime", "PLATFORM": "linux/amd64"}
    done, built = step(machine, tmp_path, "image", **cell, BASE="bootstrap")
    assert done.returncode == 0, done.stderr
    assert built["image"] == image.reference

    done, pushed = step(machine, tmp_path, "stage", **cell, IMAGE=built["image"], STAGING=f"{registry}/Owner/staging")
    assert done.returncode == 0, done.stderr
    assert pushed["name"] == f"{registry}/owner/staging"
    reference = f"{pushed['name']}@{pushed['digest']}"
    assert json.loads((tmp_path / "staged.json").read_text())["image"] == reference

    summary = tmp_path / "summary.md"
    env = {"IMAGE": reference, "LEVEL": "static", "GITHUB_STEP_SUMMARY": str(summary)}
    done, told = step(machine, tmp_path, "validate", **env)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(Path(told["report"]).read_text())
    assert pushed["digest"] in json.dumps(report)
    assert reference in summary.read_text()

    done, _ = step(machine, tmp_path, "gate", **{**env, "LEVEL": "quick"})
    assert done.returncode != 0
    assert "GPU" in done.stdout + done.stderr
