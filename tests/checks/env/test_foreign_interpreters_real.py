"""Foreign environments: the interpreters that ENVCHECK_TEST_FOREIGN lists (separated by colons) run these checks."""

import os
from pathlib import Path

import pytest

from tests.processes import checked

FOREIGN = [Path(python) for python in os.environ.get("ENVCHECK_TEST_FOREIGN", "").split(":") if python]
IDS = (
    *("amp", "checkpoint", "collectives", "compiled", "ddp", "fsdp", "installed-files", "kernels"),
    *("requirements", "shared-libraries", "torchrun", "trainer"),
)


@pytest.mark.skipif(not FOREIGN, reason="ENVCHECK_TEST_FOREIGN lists no interpreter")
@pytest.mark.parametrize("python", FOREIGN, ids=str)
def test_no_check_fails_a_sound_foreign_environment(python: Path, tmp_path: Path) -> None:
    only = [word for name in IDS for word in ("--only", name)]
    done, rows = checked(python, tmp_path / "r.json", *only, cwd=tmp_path, timeout=600)
    bad = {name: row["summary"] for name, row in rows.items() if row["status"] in ("fail", "error")}
    assert not bad, f"{bad}\n{done.stderr}"
