"""Every rendered unit is judged by systemd's own `systemd-analyze verify`."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from envcheck.mirrors.site.render import render
from tests.mirrors.site.test_render import site

pytestmark = pytest.mark.tools
# Where the units that ours are ordered by are: this machine's, or beside an unpacked systemd-analyze.
SYSTEM = ("/usr/lib/systemd/system", "/lib/systemd/system")


@pytest.fixture
def units(tmp_path: Path) -> dict[str, str]:
    """Return all units of a site with everything in it; their programs are there, so that nothing else is said."""
    whole = site(tmp_path, store=str(tmp_path / "store"), sync={"main": "rsync://other.example/main"})
    return {Path(path).name: text for path, text in render(whole).items() if path.startswith("systemd/")}


def problems(directory: Path, units: dict[str, str]) -> list[str]:
    """Return what systemd says of the units, but for programs that this machine lacks."""
    judge = shutil.which("systemd-analyze")
    if judge is None:
        pytest.skip("no systemd-analyze here (`make test` unpacks it where apt is)")
    for name, text in units.items():
        (directory / name).write_text(text)
    beside = (Path(judge).parents[2] / "systemd-analyze").glob("**/systemd/system")
    paths = [str(directory), *map(str, beside), *SYSTEM]
    completed = subprocess.run(
        [judge, "verify", *(str(directory / name) for name in units)],
        env={**os.environ, "SYSTEMD_UNIT_PATH": ":".join(paths), "SYSTEMD_LOG_LEVEL": "info"},
        capture_output=True,
        text=True,
        check=False,
    )
    return [
        line for line in completed.stderr.splitlines() if "envcheck-mirror" in line and "is not executable" not in line
    ]


def test_systemd_has_nothing_to_say_of_any_unit(tmp_path: Path, units: dict[str, str]) -> None:
    assert {"envcheck-mirror.target", "envcheck-mirror-store.path", "envcheck-mirror-sync-main.timer"} <= set(units)
    assert problems(tmp_path, units) == []
