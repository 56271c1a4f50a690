"""Machines and views to judge."""

from collections.abc import Callable

import pytest

from envcheck.checks import View
from tests import builders


@pytest.fixture
def node() -> Callable[..., View]:
    return builders.gpu_view


@pytest.fixture
def h100() -> View:
    return builders.gpu_view("h100x8")


@pytest.fixture
def cpu() -> View:
    return builders.cpu_view()


@pytest.fixture
def put() -> Callable[..., View]:
    return builders.put


@pytest.fixture
def put_gpu() -> Callable[..., View]:
    return builders.put_gpu
