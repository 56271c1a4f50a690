"""One engine, one machine configuration with canaries in it and one image built with it, for all tests here."""

import dataclasses
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.private_engine import CannotStartError, private_engine
from tests.e2e.private_index import Index, private_index
from tests.processes import ran, typed

ROOT = Path(__file__).resolve().parents[2]
CELL = "torch2.13.0-cpu-py311"
# The base is bootstrapped also where a registry has one: then all machines test the same.
BUILD = ("build", CELL, "--mirror", "host", "--engine", "docker", "--base", "bootstrap")


@dataclasses.dataclass(frozen=True)
class Machine:
    """This machine as an engineer of a site would find it: an engine, an index of the site's own, secrets."""

    env: dict[str, str]
    canaries: dict[str, str]
    index: Index

    def docker(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return ran(["docker", *arguments], env=self.env, input=stdin, timeout=600)

    def envcheck(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return typed(*arguments, env={**self.env, **env}, cwd=ROOT, timeout=1200)

    def derive(self, tag: str, *lines: str, image: str) -> str:
        """Build an image from another and these instructions, its layers as they are: nobody sends them anywhere."""
        output = f"--output=type=image,name={tag},compression=uncompressed"
        completed = self.docker("build", "--quiet", output, "-", stdin="\n".join([f"FROM {image}", *lines]))
        assert completed.returncode == 0, completed.stderr
        return tag


@dataclasses.dataclass(frozen=True)
class Image:
    """The image that was built: what envcheck said of it, and the build's whole log."""

    reference: str
    result: dict[str, Any]
    log: str


@pytest.fixture(scope="session")
def engine_env() -> Iterator[dict[str, str]]:
    try:
        with private_engine() as engine:
            yield {**os.environ, **engine.environment}
    except CannotStartError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("wheels")
    locks = [*(ROOT / "images" / CELL / f"{name}.lock" for name in ("base", "devel")), ROOT / "templates/envcheck.lock"]
    for lock in locks:
        download(lock, into)
    return into


def download(lock: Path, into: Path) -> None:
    """Fetch a lock's files through this machine's own pip configuration."""
    platforms = [f"--platform={name}_x86_64" for name in ("manylinux_2_28", "manylinux_2_17", "manylinux2014")]
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "--only-binary=:all:", "--python-version=3.11", "--implementation=cp", *platforms),
            *("--require-hashes", "--dest", into, "--requirement", lock),
        ],
        check=True,
    )


@pytest.fixture(scope="session")
def machine(engine_env: dict[str, str], wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Return a machine whose pip configuration, CA bundle and netrc are a site's, each with a canary in it."""
    scratch = tmp_path_factory.mktemp("machine")
    canaries = {name: f"canary-{name}-{secrets.token_hex(8)}" for name in ("path", "login", "password", "comment")}
    with private_index(
        wheels, scratch, path=canaries["path"], login=canaries["login"], password=canaries["password"]
    ) as index:
        bundle = scratch / "bundle.pem"
        own = Path(os.environ.get("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt"))
        bundle.write_text(f"{own.read_text()}\n# {canaries['comment']}\n{index.certificate.read_text()}")
        netrc = scratch / "netrc"
        netrc.write_text(f"machine localhost login {canaries['login']} password {canaries['password']}\n")
        pip = scratch / "pip.conf"
        pip.write_text(f"# {canaries['comment']}\n[global]\nindex-url = {index.url}\ncert = {bundle}\n")
        canaries["certificate"] = index.certificate.read_text().splitlines()[7]
        site = {
            **{name: str(bundle) for name in ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")},
            "PIP_CONFIG_FILE": str(pip),
            "NETRC": str(netrc),
            "ENVCHECK_HOME": str(scratch / "home"),
            "NO_PROXY": "localhost",
            "NO_COLOR": "1",
        }
        yield Machine({**engine_env, **site}, canaries, index)


@pytest.fixture(scope="session")
def image(machine: Machine) -> Image:
    """Return the image of the main job: base bootstrapped, built through the machine's own configuration."""
    done = machine.envcheck(*BUILD, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    return Image(result["image"], result, Path(result["log"]).read_text())
