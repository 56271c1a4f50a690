"""What every part of the tests may use, and: where everything is required, a skip is a failure."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

REQUIRE_ALL = bool(os.environ.get("ENVCHECK_REQUIRE_ALL"))


@pytest.fixture(scope="session")
def torch_python() -> Path:
    """Return the interpreter of a real torch environment, which `.ci/test` builds with envcheck itself."""
    python = os.environ.get("ENVCHECK_TEST_PYTHON")
    if not python:
        pytest.skip("no torch environment: set ENVCHECK_TEST_PYTHON, or use `make test`, which builds one")
    return Path(python)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Under `.ci/run` fail what could not run for want of an engine or of torch."""
    report = yield
    wanted = item.get_closest_marker("engine") or item.get_closest_marker("torch")
    if REQUIRE_ALL and wanted and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"skipped where everything is required: {report.longrepr}"
    return report
