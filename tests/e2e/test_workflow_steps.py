"""The steps of images.yml on a real engine and registry: build, stage by digest, validate, publish, pull, gate."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import CELL, ROOT, Image, Machine
from tests.processes import ran
from tests.registries import docker_registry

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with docker_registry(tmp_path_factory.mktemp("registry")) as address:
        yield address


def step(machine: Machine, at: Path, name: str, **env: str) -> tuple[subprocess.CompletedProcess[str], dict[str, str]]:
    """Run a step as a workflow does, and return it with what it told GitHub."""
    output = at / f"{name}.output"
    own = {"STATE": str(at), "GITHUB_OUTPUT": str(output), "GITHUB_WORKSPACE": str(at), "GITHUB_SHA": "c0ffee"}
    completed = ran(
        ["make", "--silent", "--old-file=tool", name], env={**machine.env, **own, **env}, cwd=ROOT, timeout=1000
    )
    lines = output.read_text().splitlines() if output.exists() else []
    return completed, dict(line.split("=", 1) for line in lines)


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
    env = {"IMAGE": reference, "LEVEL": "quick", "GITHUB_STEP_SUMMARY": str(summary)}
    done, result = step(machine, tmp_path, "validate", **env)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(Path(result["report"]).read_text())
    assert pushed["digest"] in json.dumps(report)
    assert reference in summary.read_text()

    publish_and_pull(machine, tmp_path, reference, result["report"])

    done, _ = step(machine, tmp_path, "gate", **env)
    assert done.returncode != 0
    assert "GPU" in done.stdout + done.stderr


def publish_and_pull(machine: Machine, at: Path, reference: str, report: str) -> None:
    """Publish what the run proved, and pull by it: the engine fetches the very image that ran."""
    assert machine.envcheck("key", "new", str(at / "release")).returncode == 0
    done = machine.envcheck("publish", reference, "--report", report, "--key", str(at / "release"))
    assert done.returncode == 0, done.stderr
    policy = at / "envcheck-policy.toml"
    policy.write_text('[proof]\nkeys = ["release.pub"]\nmode = "cpu"\nlevel = "quick"\n')
    assert machine.docker("image", "rm", reference).returncode == 0
    name = reference.partition("@")[0]
    done = machine.envcheck("pull", "--from", name, "--policy", str(policy), "--engine", "docker", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    pulled = json.loads(done.stdout)
    assert (pulled["chosen"], pulled["refused"]) == (reference, [])
    ids = [
        machine.docker("image", "inspect", "--format", "{{.Id}}", one) for one in (reference, pulled["pulled"]["name"])
    ]
    assert len({one.stdout for one in ids}) == 1
    assert all(one.returncode == 0 for one in ids)
