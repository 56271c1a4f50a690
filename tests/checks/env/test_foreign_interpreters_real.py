"""Foreign environments: the interpreters that ENVCHECK_TEST_FOREIGN lists (separated by colons) run these checks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOREIGN = [Path(python) for python in os.environ.get("ENVCHECK_TEST_FOREIGN", "").split(":") if python]
IDS = (
    *("amp", "checkpoint", "collectives", "compiled", "ddp", "fsdp", "installed-files", "kernels"),
    *("requirements", "shared-libraries", "torchrun", "trainer"),
)


@pytest.mark.skipif(not FOREIGN, reason="ENVCHECK_TEST_FOREIGN lists no interpreter")
@pytest.mark.parametrize("python", FOREIGN, ids=str)
def test_no_check_fails_a_sound_foreign_environment(python: Path, tmp_path: Path) -> None:
    only = [word for name in IDS for word in ("--only", name)]
    argv = [sys.executable, "-m", "envcheck", "run", "--python", str(python), *only, "--json", "--output", "r.json"]
    completed = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)
    outcomes = json.loads(completed.stdout)["outcomes"]
    bad = {row["id"]: row["summary"] for row in outcomes if row["status"] in ("fail", "error")}
    assert not bad, f"{bad}\n{completed.stderr}"
