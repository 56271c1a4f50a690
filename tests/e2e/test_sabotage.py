"""Each promise broken once on a real engine: the build or the validation fails, and names the culprit."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from envcheck.images.build_log import explain
from tests.e2e import layers
from tests.e2e.conftest import BUILD, CELL, ROOT, Image, Machine

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]


def outcome(machine: Machine, tmp_path: Path, check: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run envcheck and return its exit status and what it said of one check."""
    report = tmp_path / "report.json"
    done = machine.envcheck("run", "--output", str(report), *arguments)
    assert report.exists(), done.stderr
    outcomes = json.loads(report.read_text())["outcomes"]
    return done.returncode, next(o for o in outcomes if o["id"] == check)


@pytest.mark.usefixtures("image")
def test_a_lock_with_a_wrong_hash_is_not_installed(machine: Machine, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "images" / CELL, tmp_path / CELL)
    lock = tmp_path / CELL / "base.lock"
    right = next(line for line in lock.read_text().splitlines() if "--hash" in line)
    lock.write_text(lock.read_text().replace(right.strip(" \\"), f"    --hash=sha256:{'0' * 64}".strip()))
    done = machine.envcheck(*BUILD, "--images", str(tmp_path))
    assert done.returncode == 1
    assert "hash mismatch" in done.stderr.lower()
    assert "install.sh base" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) < 45


@pytest.mark.usefixtures("image")
def test_a_torch_that_differs_from_its_tag_never_becomes_a_layer(machine: Machine, tmp_path: Path) -> None:
    context = tmp_path / "context"
    assert machine.envcheck("render", CELL, "--mirror", "host", "--output", str(context)).returncode == 0
    dockerfile = context / "Dockerfile"
    dockerfile.write_text(dockerfile.read_text().replace("torch=2.13.0+cpu", "torch=2.12.1+cpu"))
    base = machine.docker("images", "--format", "{{.Repository}}:{{.Tag}}", "localhost/envcheck/base").stdout.split()[0]
    netrc = f"id=netrc,src={machine.env['NETRC']}"
    build = ["build", "--progress=plain", "--network=host", "--build-arg", f"BASE={base}", "--secret", netrc]
    completed = machine.docker(*build, "--tag", "lie:1", str(context))
    assert completed.returncode != 0
    failure = explain(completed.stderr)
    assert failure.cause is not None
    assert failure.cause.what.startswith("version assertion failed")
    assert any("torch is 2.13.0+cpu, promised was 2.12.1+cpu" in line for line in failure.lines)
    assert machine.docker("image", "inspect", "lie:1").returncode != 0


def test_a_label_that_lies_is_named(image: Image, machine: Machine, tmp_path: Path) -> None:
    liar = machine.derive("liar:1", 'LABEL envcheck.torch="2.12.1+cpu"', image=image.reference)
    status, message = outcome(machine, tmp_path, "image-promises", "--image", liar, "--only", "image-promises")
    assert status == 1
    assert message["status"] == "fail"
    assert "torch" in message["summary"]
    assert "2.12.1+cpu" in json.dumps(message)


def test_what_an_image_was_built_with_is_found_in_its_history_and_files(
    image: Image, machine: Machine, tmp_path: Path
) -> None:
    only = ("--only", "credentials", "--only", "image-config")
    assert outcome(machine, tmp_path, "credentials", "--image", image.reference, *only)[1]["status"] == "pass"
    assert outcome(machine, tmp_path, "image-config", "--image", image.reference, *only)[1]["status"] == "pass"
    lines = (
        "ARG HF_TOKEN=canary",
        "RUN true",
        'ENTRYPOINT ["/usr/bin/env"]',
        "USER 0",
        "RUN echo canary > /root/.netrc",
    )
    leaky = machine.derive("leaky:1", *lines, image=image.reference)
    status, message = outcome(machine, tmp_path, "credentials", "--image", leaky, *only)
    assert (status, message["status"]) == (1, "fail")
    assert "HF_TOKEN" in message["summary"]
    assert "/root/.netrc" in message["summary"]
    assert "canary" not in (tmp_path / "report.json").read_text()
    message = outcome(machine, tmp_path, "image-config", "--image", leaky, *only)[1]
    assert (message["status"], message["summary"]) == ("warn", "it runs as root; PID 1 is env, which is no init")


def test_an_image_that_is_not_ours_is_validated_all_the_same(image: Image, machine: Machine, tmp_path: Path) -> None:
    lines = [f"COPY --from={image.reference} /opt/venv /srv/torch", "ENV PATH=/srv/torch/bin:/usr/bin:/bin"]
    foreign = machine.derive("foreign:1", *lines, image=str(image.result["base"]))
    assert not layers.labels(foreign, machine.env)
    only = ("--only", "image-promises", "--only", "ddp")
    status, message = outcome(machine, tmp_path, "image-promises", "--image", foreign, *only)
    assert (status, message["status"]) == (0, "skip")
    outcomes = json.loads((tmp_path / "report.json").read_text())["outcomes"]
    assert next(o for o in outcomes if o["id"] == "ddp")["status"] == "pass"
