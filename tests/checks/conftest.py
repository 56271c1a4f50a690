"""Machines and views to judge."""

from collections.abc import Callable

import pytest

from envcheck.checks import View
from tests import builders


@pytest.fixture
def node() -> Callable[..., View]:
    """Return what builds the view of a GPU machine of tests/data/snapshots."""
    return builders.gpu_view


@pytest.fixture
def h100() -> View:
    """Return the view of eight H100."""
    return builders.gpu_view("h100x8")


@pytest.fixture
def cpu() -> View:
    """Return the view of a machine without a GPU."""
    return builders.cpu_view()


@pytest.fixture
def put() -> Callable[..., View]:
    """Return what changes signals of a node."""
    return builders.put


@pytest.fixture
def put_gpu() -> Callable[..., View]:
    """Return what changes signals of GPUs."""
    return builders.put_gpu
