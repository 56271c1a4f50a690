"""Where everything is required, a test that could not run for want of an engine, of torch or of promtool has failed."""

import os
import sys
from pathlib import Path

from tests.processes import ran

TEST = "@pytest.mark.{0}\ndef test_{0}() -> None:\n    pytest.skip('there is none')\n"
MARKS = ("engine", "torch", "promtool", "tools", "gpu")


def test_a_skip_is_a_failure_only_where_all_is_required(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_bytes(Path(__file__).with_name("conftest.py").read_bytes())
    (tmp_path / "test_it.py").write_text("import pytest\n" + "".join(map(TEST.format, MARKS)), encoding="utf-8")
    config = Path(__file__).parents[1] / "pyproject.toml"
    command = [sys.executable, "-m", "pytest", "-q", "-c", str(config), "--rootdir", str(tmp_path), str(tmp_path)]
    for required, told in (("1", "4 failed, 1 skipped"), ("", "5 skipped")):
        completed = ran(command, env={**os.environ, "ENVCHECK_REQUIRE_ALL": required})
        assert told in completed.stdout
        assert completed.returncode == bool(required)
