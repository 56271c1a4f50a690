"""Where the shipped files are, and that an installed package's own are not written to."""

from pathlib import Path

import pytest

from envcheck import data
from envcheck.cli import Settings
from envcheck.cli.commands import cells
from envcheck.errors import ConfigError
from envcheck.mirrors.profiles import model


def test_a_base_directory_that_is_relative_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENVCHECK_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for given, base in ((str(tmp_path / "data"), tmp_path / "data"), ("data", tmp_path / ".local/share")):
        monkeypatch.setenv("XDG_DATA_HOME", given)
        assert data.state_path("store") == base / "envcheck/store"
    for variable in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, "relative")
    assert model.choice_path() == tmp_path / ".config/envcheck/mirror"


def test_an_installed_package_uses_its_copies_and_leaves_them_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "_data/images").mkdir(parents=True)
    matrix = data.data_path("matrix.yaml")
    monkeypatch.setattr(data, "_PACKAGE", tmp_path)
    assert data.data_path("images") == tmp_path / "_data/images"
    with pytest.raises(ConfigError, match="--images DIR"):
        data.own_images()
    # A misspelt cell is told before the rest.
    for cell, told in (("torch2.13.0-cpu-py31", "did you mean|no cell"), ("torch2.13.0-cpu-py311", "give .* -o DIR")):
        with pytest.raises(ConfigError, match=told):
            cells.render.main([cell], standalone_mode=False, obj=Settings(matrix=matrix, verbose=False, quiet=True))
