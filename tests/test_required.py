"""Where everything is required, a test that could not run for want of an engine, of torch or of promtool has failed."""

import os
import sys
from pathlib import Path

import pytest

from tests.processes import ran

TESTS = """
import pytest

@pytest.mark.{mark}
def test_it() -> None:
    pytest.skip("there is none")
"""


@pytest.mark.parametrize(
    ("mark", "required", "status"),
    [
        ("engine", "1", 1),
        ("torch", "1", 1),
        ("promtool", "1", 1),
        ("tools", "1", 1),
        ("gpu", "1", 0),
        ("engine", "", 0),
    ],
)
def test_a_skip_is_a_failure_only_where_all_is_required(tmp_path: Path, mark: str, required: str, status: int) -> None:
    conftest = Path(__file__).with_name("conftest.py")
    (tmp_path / "conftest.py").write_bytes(conftest.read_bytes())
    (tmp_path / "test_it.py").write_text(TESTS.format(mark=mark), encoding="utf-8")
    config = Path(__file__).parents[1] / "pyproject.toml"
    completed = ran(
        [sys.executable, "-m", "pytest", "-q", "-c", str(config), "--rootdir", str(tmp_path), str(tmp_path)],
        env={**os.environ, "ENVCHECK_REQUIRE_ALL": required},
    )
    assert completed.returncode == status, completed.stdout
    assert ("1 failed" if status else "1 skipped") in completed.stdout
