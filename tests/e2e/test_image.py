"""The main job on a real engine: bootstrap a base, build through the machine's mirror, prove, find no trace of it."""

import base64
import json
import re
import shlex
from pathlib import Path

import pytest

from envcheck.mirrors.profiles.host_config import apt_sources
from tests.e2e import layers
from tests.e2e.conftest import BUILD, CELL, ROOT, Image, Machine
from tests.wheels import wheel

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]


def test_the_build_went_through_the_machines_index_ca_and_netrc(image: Image, machine: Machine) -> None:
    assert "base: used pypi-1" in image.log
    assert "envcheck: used pypi-1" in image.log
    fetched = {line.rpartition("/")[2].partition("-")[0] for line in machine.index.served if line.startswith("200 ")}
    # What the machine has as files goes along in the context; the rest can only have come from here.
    for lock in (ROOT / "images" / CELL / "base.lock", ROOT / "templates/envcheck.lock"):
        assert fetched & set(re.findall(r"^([a-z0-9-]+)==", lock.read_text(), re.MULTILINE)), lock


def test_no_layer_label_or_history_holds_a_mirror_a_certificate_or_a_secret(
    image: Image, machine: Machine, tmp_path: Path
) -> None:
    pair = f"{machine.canaries['login']}:{machine.canaries['password']}"
    needles = [*machine.canaries.values(), base64.b64encode(pair.encode()).decode(), machine.index.url]
    needles += mirrors_of_apt(image.result["base"], machine)
    # What is in the image is found, so that finding nothing means something: a file's content, and a file's name.
    there = ['"python": "3.11"', "torch/_C.cpython-311", f"envcheck.cell={CELL}"]
    answer = layers.search(image.reference, [*needles, *there], machine.env, tmp_path)
    assert set(answer) == set(there), answer


def test_labels_are_the_specs_promises(image: Image, machine: Machine) -> None:
    data = layers.labels(image.reference, machine.env)
    assert {name: data.get(f"envcheck.{name}") for name in image.result["promises"]} == image.result["promises"]
    assert data["envcheck.torch"] == "2.13.0+cpu"
    assert "torch==2.13.0+cpu" in data["envcheck.packages"].split()
    assert data["org.opencontainers.image.base.name"].startswith("localhost/envcheck/base:bookworm-")


def test_the_bill_of_materials_has_the_images_distribution(image: Image, machine: Machine) -> None:
    done = machine.envcheck("images", "sbom", CELL, "--image", image.reference)
    assert done.returncode == 0, done.stderr
    names = {one["name"] for one in json.loads(done.stdout)["components"] if "pkg:deb/debian/" in one.get("purl", "")}
    assert {"libc6", "python3", "tini"} <= names


def test_the_image_carries_an_envcheck_that_its_user_does_not_see(image: Image, machine: Machine) -> None:
    assert "envcheck, version" in machine.docker("run", "--rm", image.reference, "envcheck", "--version").stdout
    listed = machine.docker("run", "--rm", image.reference, "pip", "list", "--format=freeze").stdout.lower().split()
    # The locks and nothing else: neither envcheck's own packages nor the distribution's pip and setuptools.
    locks = [(ROOT / "images" / CELL / f"{group}.lock").read_text() for group in ("torch", "base")]
    locked = re.findall(r"^([a-z0-9-]+==\S+) ", "".join(locks), re.MULTILINE)
    assert sorted(name.replace("_", "-") for name in listed) == sorted(locked)


@pytest.mark.parametrize("user", [None, "12345:12345"])
def test_nobody_is_root_and_any_user_can_work(image: Image, machine: Machine, user: str | None) -> None:
    program = (
        "import os, pathlib, torch; pathlib.Path.home().joinpath('x').touch(); print(os.getuid(), torch.ones(2).sum())"
    )
    chosen = ["--user", user] if user else []
    completed = machine.docker("run", "--rm", *chosen, image.reference, "python", "-c", program)
    assert completed.stdout.split() == [user.partition(":")[0] if user else "1000", "tensor(2.)"], completed.stderr


@pytest.mark.usefixtures("image")
def test_the_same_key_is_not_built_again_but_tagged(machine: Machine) -> None:
    arguments = (*BUILD, "--json", "--tag")
    first = json.loads(machine.envcheck(*arguments, "one/name").stdout)
    # What is derived from it inherits its key's label, and is another image all the same.
    machine.derive("my/own:1", "LABEL mine=1", image=first["image"])
    document = json.loads(machine.envcheck(*arguments, "other/name").stdout)
    assert document["skipped"] is True
    assert (document["key"], document["id"]) == (first["key"], first["id"])
    assert document["image"] == "other/name:2.13.0-cpu-py311-runtime"
    assert machine.docker("image", "inspect", document["image"]).returncode == 0


def test_validation_from_the_inside_passes_with_two_ranks(image: Image, machine: Machine, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    # Compiling takes longer than all the rest; the image does it below, on its own.
    done = machine.envcheck("run", "--image", image.reference, "--skip", "compiled", "--output", str(report))
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(report.read_text())
    held = json.loads(machine.docker("image", "inspect", image.reference).stdout)[0]
    facts = result["target"]["image"]
    assert facts["diff_ids"] == held["RootFS"]["Layers"]
    assert facts["repository_digests"] == sorted(set(held["RepoDigests"]))
    assert result["target"]["image_id"] == image.result["id"]
    assert held["Id"] in "".join(done.stdout.split())
    outcomes = {outcome["id"]: outcome for outcome in result["outcomes"]}
    assert outcomes["image-promises"]["status"] == "pass"
    assert outcomes["ddp"]["status"] == "pass"
    assert "2 ranks over gloo" in outcomes["ddp"]["summary"]


def test_the_image_validates_itself_as_documented(image: Image, machine: Machine) -> None:
    completed = machine.docker("run", "--rm", "--shm-size", "8g", image.reference, "envcheck", "run", "--output", "-")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    outcomes = {outcome["id"]: outcome for outcome in json.loads(completed.stdout)["outcomes"]}
    assert "2 ranks over gloo" in outcomes["ddp"]["summary"]


def test_in_the_64_mb_that_docker_gives_unasked_nothing_but_shared_memory_fails(image: Image, machine: Machine) -> None:
    completed = machine.docker("run", "--rm", image.reference, "envcheck", "run", "--level", "quick", "--json")
    assert completed.returncode == 1, completed.stderr
    outcomes = json.loads(completed.stdout)["outcomes"]
    undecided = [o for o in outcomes if o["status"] == "error"]
    assert ([o["id"] for o in outcomes if o["status"] == "fail"], undecided) == (["shm"], [])


def test_a_rendered_context_is_built_by_docker_alone(image: Image, machine: Machine, tmp_path: Path) -> None:
    rendered = machine.envcheck("render", CELL, "--mirror", "host", "--output", str(tmp_path / "context"))
    command = shlex.split(rendered.stdout.splitlines()[-1])
    assert command[:2] == ["docker", "build"]
    # No registry is asked for the base; the rest is the command as it was printed.
    completed = machine.docker("build", f"--build-arg=BASE={image.result['base']}", *command[2:])
    assert completed.returncode == 0, completed.stderr
    built = command[command.index("-t") + 1]
    completed = machine.docker("run", "--rm", built, "python", "-c", "import torch; print(torch.__version__)")
    assert completed.stdout.strip() == "2.13.0+cpu", completed.stderr


@pytest.mark.parametrize("user", ["1000:1000", "0"])
def test_pip_installs_in_a_child_image(image: Image, machine: Machine, tmp_path: Path, user: str) -> None:
    data = "mine-1.0.data"
    files = {"mine.py": "", f"{data}/data/share/man/man1/mine.1": "", f"{data}/scripts/mine": "#!python\n"}
    wheel(tmp_path, "mine", files=files)
    mount = "--mount=type=bind,from=wheels,target=/wheels"
    install = f"RUN {mount} pip install --no-index --find-links /wheels mine && test -e /opt/venv/bin/mine"
    build = ("build", "--quiet", f"--build-context=wheels={tmp_path}", "-")
    completed = machine.docker(*build, stdin=f"FROM {image.reference}\nUSER {user}\n{install}\n")
    assert completed.returncode == 0, completed.stderr


def test_the_default_user_replaces_no_package_of_the_image(image: Image, machine: Machine, tmp_path: Path) -> None:
    wheel(tmp_path, "numpy", "99.0")
    tmp_path.chmod(0o755)
    script = (
        "pip install --no-index --find-links /wheels numpy==99.0; python -c 'import numpy; print(numpy.__version__)'"
    )
    completed = machine.docker("run", "--rm", "-v", f"{tmp_path}:/wheels:ro", image.reference, "sh", "-c", script)
    assert "ERROR: Could not install packages due to an OSError" in completed.stderr
    assert f"numpy=={completed.stdout.split()[-1]} " in (ROOT / "images" / CELL / "base.lock").read_text()


def test_an_alias_never_goes_back(image: Image, machine: Machine) -> None:
    newer = machine.derive("site/torch:cpu-py311", 'LABEL envcheck.torch="2.14.0+cpu"', image=image.reference)
    done = machine.envcheck(*BUILD, "--json", "--tag", "site/torch")
    result = json.loads(done.stdout)
    assert result["held_back"] == {newer: "it names torch 2.14.0, which is newer"}
    assert layers.labels(newer, machine.env)["envcheck.torch"] == "2.14.0+cpu"


def mirrors_of_apt(base: str, machine: Machine) -> list[str]:
    """Return where this machine has its packages from, but for what the distribution's own files name."""
    own = machine.docker("run", "--rm", base, "sh", "-c", "cat /etc/apt/sources.list /etc/apt/sources.list.d/*").stdout
    assert "bookworm" in own
    return [uri for source in apt_sources() for uri in source.uris if uri.rstrip("/") not in own]


def test_the_bytes_of_the_image_are_accounted_for(image: Image, machine: Machine) -> None:
    """Of a runtime image two thirds are its wheels; the rest is bytecode, the base and envcheck."""
    done = machine.envcheck("images", "size", image.reference, "--engine", "docker", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert next(iter(document["packages"])).startswith("torch==")
    assert 0.6 < sum(document["packages"].values()) / document["total"] < 1.0
    assert document["total"] == sum(layer["bytes"] for layer in document["layers"])
    missing = machine.envcheck("images", "size", "no/such:image", "--engine", "docker")
    assert missing.returncode == 2
    assert missing.stderr.startswith("envcheck: docker has no image no/such:image; build it (`envcheck build`)")
    assert missing.stderr.count("\n") == 1
