"""Registries: both real ones, started once for a worker, and one that does what it is told to."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from envcheck.registry.oci.repository import Repository
from tests import registries
from tests.registry.oci.fakes import opened

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
    """Return what opens a repository that no other test uses, at HOST:PORT."""
    return lambda address: opened(address, f"team/torch-{next(_NUMBERS)}")
