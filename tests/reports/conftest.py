"""Reports made by hand: what a run of each kind leaves behind."""

from collections.abc import Callable

import pytest

from envcheck.reports.model import RunReport
from tests import builders

MakeReport = Callable[..., RunReport]


@pytest.fixture
def report() -> MakeReport:
    return builders.report
