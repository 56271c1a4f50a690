"""`build --prefetch` on a real engine: from a site's mirror into the store, and then an image without any network."""

import dataclasses
import json
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import layers
from tests.e2e.conftest import CELL, ROOT, Image, Machine
from tests.e2e.private_index import Index, private_index
from tests.processes import ran

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]


@dataclasses.dataclass(frozen=True)
class Offline:
    """A machine with a store that was filled from a mirror, the mirror, and the command that builds."""

    machine: Machine
    mirror: Index
    build: tuple[str, ...]

    def envcheck(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run envcheck in a network namespace of its own: not even the loopback is up there."""
        argv = ["unshare", "--net", sys.executable, "-m", "envcheck", *arguments]
        return ran(argv, env=self.machine.env, cwd=ROOT, timeout=1200)


@pytest.fixture(scope="module")
def mirror(machine: Machine, wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    """Return a mirror on the loopback that has every wheel of the cell and of envcheck, with a CA and a password."""
    folder = tmp_path_factory.mktemp("mirror")
    fetched = machine.envcheck("fetch", CELL, "--mirror", "host", "--output", str(folder))
    assert fetched.returncode == 0, fetched.stderr
    for wheel in wheels.glob("*.whl"):
        shutil.copy(wheel, folder)
    scratch = tmp_path_factory.mktemp("scratch")
    secret = secrets.token_hex(8)
    with private_index(folder, scratch, path="closed", login="site", password=secret, hashed=True) as index:
        (scratch / "netrc").write_text(f"machine localhost login site password {secret}\n")
        urls = json.dumps([{"url": index.url}])
        lines = [f"pypi: {urls}", f"pytorch: {urls}", f"ca: {index.certificate}", f"netrc: {scratch}/netrc"]
        (scratch / "site.yaml").write_text("\n".join(lines))
        yield index


@pytest.fixture(scope="module")
def offline(image: Image, machine: Machine, mirror: Index, tmp_path_factory: pytest.TempPathFactory) -> Offline:
    """Return the store as a build leaves it that was ended after a second: all of the files, and no image."""
    # The base, with all that apt gives, is the one that the image was built on: bootstrapped before any build.
    assert machine.docker("image", "inspect", str(image.result["base"])).returncode == 0
    store = tmp_path_factory.mktemp("store")
    through = ("--mirror", str(mirror.certificate.with_name("site.yaml")), "--engine", "docker")
    build = ("build", CELL, *through, "--prefetch", "--store", str(store), "--tag", "closed/torch")
    ended = machine.envcheck(*build, "--timeout", "1")
    assert (ended.returncode, "timed out" in ended.stderr) == (1, True), ended.stderr
    fetched = {line.rpartition("/")[2] for line in mirror.served if line.startswith(("200 ", "206 "))}
    assert {path.partition("-")[0] for path in fetched if path.endswith(".whl")} >= {"torch", "sympy", "msgspec"}
    return Offline(machine, mirror, build)


@pytest.fixture(scope="module")
def built(offline: Offline) -> Image:
    """Return the image of the second build, which has no network; the first one has brought all there is to bring."""
    requests = len(offline.mirror.served)
    done = offline.envcheck(*offline.build, "--json")
    assert done.returncode == 0, done.stderr
    assert len(offline.mirror.served) == requests
    result = json.loads(done.stdout)
    return Image(result["image"], result, Path(result["log"]).read_text())


def test_a_cut_off_network_is_enough_and_every_part_is_of_the_store(built: Image, offline: Offline) -> None:
    assert built.result["skipped"] is False
    assert [(used["group"], used["source"]) for used in built.result["sources"]] == [
        (group, "files-of-the-store") for group in ("torch", "base", "envcheck")
    ]
    labels = layers.labels(built.reference, offline.machine.env)
    assert {name: labels[f"envcheck.{name}"] for name in built.result["promises"]} == built.result["promises"]
    inside = "import torch, numpy; print(torch.__version__, numpy.__version__)"
    completed = offline.machine.docker("run", "--rm", "--network=none", built.reference, "python", "-c", inside)
    locked = (ROOT / "images" / CELL / "base.lock").read_text()
    numpy = next(line for line in locked.splitlines() if line.startswith("numpy==")).split()[0].partition("==")[2]
    assert completed.stdout.split() == ["2.13.0+cpu", numpy], completed.stderr


def test_it_is_validated_without_a_network_too(built: Image, offline: Offline, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    only = ("--only", "image-promises", "--only", "credentials")
    done = offline.envcheck("run", "--image", built.reference, *only, "--output", str(report))
    assert done.returncode == 0, done.stdout + done.stderr
    statuses = {outcome["id"]: outcome["status"] for outcome in json.loads(report.read_text())["outcomes"]}
    assert (statuses["image-promises"], statuses["credentials"]) == ("pass", "pass")


def test_no_wheel_lies_in_the_image_nor_in_the_context(built: Image, offline: Offline) -> None:
    find = ("find", "/", "-xdev", "-name", "*.whl", "-not", "-path", "*/share/python-wheels/*")
    completed = offline.machine.docker("run", "--rm", "--user=0", "--entrypoint=", built.reference, *find)
    assert (completed.returncode, completed.stdout) == (0, ""), completed.stderr
    planned = json.loads(offline.envcheck(*offline.build, "--dry-run", "--json").stdout)
    assert (planned["network"], planned["secrets"], planned["skipped"]) == ("none", {}, True)
    assert "--network=none" in planned["argv"]
    assert not [path for path in Path(planned["context"]).rglob("*") if path.suffix == ".whl"]
    assert len([*Path(planned["contexts"]["wheels"]).glob("*.whl")]) > 10


def test_once_more_nothing_is_asked_for_and_nothing_built(built: Image, offline: Offline) -> None:
    requests = len(offline.mirror.served)
    document = json.loads(offline.machine.envcheck(*offline.build, "--json").stdout)
    assert (document["skipped"], document["id"], document["sources"]) == (True, built.result["id"], [])
    assert len(offline.mirror.served) == requests
