"""Registries: both real ones, started once for a worker; and keys that are made anew for each run."""

import itertools
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from envcheck.registry.repository import Repository
from envcheck.signing import PrivateKey, load_private
from tests import proofs, registries
from tests.registry.oci.fakes import opened
from tests.registry.site import Site

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def docker_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the registry without the referrers API."""
    return tmp_path_factory.mktemp("docker-registry")


@pytest.fixture(scope="session")
def docker_registry(docker_files: Path) -> Iterator[str]:
    """Return HOST:PORT of the registry without the referrers API."""
    with registries.docker_registry(docker_files) as address:
        yield address


@pytest.fixture(scope="session")
def referrers_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return HOST:PORT of the registry with the referrers API."""
    with registries.referrers_registry(tmp_path_factory.mktemp("referrers-registry")) as address:
        yield address


@pytest.fixture(params=["docker_registry", "referrers_registry"])
def real(request: pytest.FixtureRequest) -> str:
    """Return HOST:PORT of each of the two."""
    return str(request.getfixturevalue(request.param))


@pytest.fixture
def fresh() -> Callable[[str], Repository]:
    """Return what opens a repository that no other test uses, at HOST:PORT of a real registry, with real pauses."""
    return lambda address: opened(address, f"team/torch-{next(_NUMBERS)}", sleep=time.sleep)


@pytest.fixture
def site(real: str, tmp_path: Path) -> Site:
    """Return a repository and the commands, at each of the two."""
    return Site(real, tmp_path)


@pytest.fixture
def on_disk(docker_registry: str, tmp_path: Path) -> Site:
    """Return a repository and the commands, at the registry whose files are at hand."""
    return Site(docker_registry, tmp_path)


@pytest.fixture(scope="session")
def key(tmp_path_factory: pytest.TempPathFactory) -> PrivateKey:
    """Return a key that policies allow."""
    return proofs.key(tmp_path_factory.mktemp("key"))


@pytest.fixture(scope="session")
def other_key(tmp_path_factory: pytest.TempPathFactory) -> PrivateKey:
    """Return a key that only some policies allow."""
    return proofs.key(tmp_path_factory.mktemp("other"))


@pytest.fixture(scope="session")
def ecdsa_key(tmp_path_factory: pytest.TempPathFactory) -> PrivateKey:
    """Return an ECDSA P-256 key that openssl made."""
    path: Path = tmp_path_factory.mktemp("ecdsa") / "key"
    words = ["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", str(path)]
    subprocess.run(words, check=True, capture_output=True)
    return load_private(path)
