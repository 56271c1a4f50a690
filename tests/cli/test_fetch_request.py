"""What `fetch CELL` asks for."""

from __future__ import annotations

import os
import types

import pytest

from envcheck.cli import Settings
from envcheck.cli.sources.downloads import locked_cells
from envcheck.data import data_path
from envcheck.errors import ConfigError
from envcheck.images.lockfile import read_locks
from envcheck.images.targets import SHARED_GROUPS
from envcheck.matrix.facts.model import HostArch

SETTINGS = Settings(None, verbose=False, quiet=False)


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_a_cell_is_its_files_for_this_machine(monkeypatch: pytest.MonkeyPatch, arch: HostArch) -> None:
    monkeypatch.setattr(os, "uname", lambda: types.SimpleNamespace(machine=arch))
    (cell,) = locked_cells(SETTINGS, "torch2.10.0-cpu-py311", one=True)
    assert cell.locks == read_locks(data_path("images") / "torch2.10.0-cpu-py311", SHARED_GROUPS, arch)


def test_a_cell_without_a_lock_for_this_machine_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: types.SimpleNamespace(machine="aarch64"))
    with pytest.raises(ConfigError, match=r"has no lock for aarch64; run `envcheck lock \S+ --arch aarch64`"):
        locked_cells(SETTINGS, "torch2.13.0-cpu-py311", one=False)
