"""Registries: both real ones, started once for a worker; and keys that are made anew for each run."""

import itertools
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec import structs

from envcheck.registry.judge import DEFAULT, Policy
from envcheck.registry.repository import Repository
from envcheck.signing import PrivateKey, load_private
from tests import proofs, registries
from tests.http_server import Servers
from tests.registry.oci.fakes import FakeRegistry, opened
from tests.registry.site import Site

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def docker_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("docker-registry")


@pytest.fixture(scope="session")
def docker_registry(docker_files: Path) -> Iterator[str]:
    with registries.docker_registry(docker_files) as address:
        yield address


@pytest.fixture(scope="session")
def referrers_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with registries.referrers_registry(tmp_path_factory.mktemp("referrers-registry")) as address:
        yield address


@pytest.fixture(params=["docker_registry", "referrers_registry"])
def real(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


@pytest.fixture
def fresh() -> Callable[[str], Repository]:
    """Return what opens a repository that no other test uses, at HOST:PORT of a real registry, with real pauses."""
    return lambda address: opened(address, f"team/torch-{next(_NUMBERS)}", sleep=time.sleep)


@pytest.fixture
def site(real: str, tmp_path: Path) -> Site:
    return Site(real, tmp_path)


@pytest.fixture
def on_disk(docker_registry: str, tmp_path: Path) -> Site:
    return Site(docker_registry, tmp_path)


@pytest.fixture
def registry(servers: Servers) -> FakeRegistry:
    return servers.start(FakeRegistry())


@pytest.fixture
def repository(registry: FakeRegistry) -> Repository:
    return opened(registry.netloc)


@pytest.fixture
def lied(registry: FakeRegistry, tmp_path: Path) -> Site:
    """Return a repository with a proven image, in a registry that does what a test says."""
    site = Site(registry.netloc, tmp_path)
    site.attach(site.image("one", "2.13.0-cpu-py311-runtime"))
    return site


@pytest.fixture(scope="session")
def key(tmp_path_factory: pytest.TempPathFactory) -> PrivateKey:
    return proofs.key(tmp_path_factory.mktemp("key"))


@pytest.fixture(scope="session")
def other_key(tmp_path_factory: pytest.TempPathFactory) -> PrivateKey:
    return proofs.key(tmp_path_factory.mktemp("other"))


@pytest.fixture(scope="session")
def ecdsa_key(tmp_path_factory: pytest.TempPathFactory) -> PrivateKey:
    path: Path = tmp_path_factory.mktemp("ecdsa") / "key"
    words = ["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", str(path)]
    subprocess.run(words, check=True, capture_output=True)
    return load_private(path)


@pytest.fixture
def policy(key: PrivateKey) -> Policy:
    return structs.replace(DEFAULT, keys=(key.public,))
