"""The shipped matrix, and ways to ask it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envcheck.matrix.facts.model import Matrix
from envcheck.matrix.file.load import loads
from envcheck.matrix.resolver.resolve import Query, Resolution, resolve

SHIPPED = Path(__file__).parents[2] / "matrix.yaml"

Ask = Callable[..., Resolution]


@pytest.fixture(scope="session")
def shipped() -> Path:
    return SHIPPED


@pytest.fixture(scope="session")
def matrix() -> Matrix:
    return loads(SHIPPED.read_bytes())


@pytest.fixture(scope="session")
def ask(matrix: Matrix) -> Ask:
    def ask(**axes: Any) -> Resolution:
        return resolve(matrix, Query(**axes))

    return ask
