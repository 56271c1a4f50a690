"""Machines and views to judge."""

import pytest

from envcheck.checks import View
from tests import builders


@pytest.fixture
def h100() -> View:
    return builders.gpu_view("h100x8")


@pytest.fixture
def cpu() -> View:
    return builders.cpu_view()
