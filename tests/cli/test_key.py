"""`envcheck key new`: two files, an id, and a password that only the user knows."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from envcheck import signing
from envcheck.cli import cli
from envcheck.cli.commands import key as command_module
from envcheck.errors import ConfigError


def new(*words: object, typed: str | None = None) -> Result:
    """Run the command; `typed` is typed at a terminal, and None is a standard input without one."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(command_module, "_at_terminal", lambda: typed is not None)
        return CliRunner().invoke(cli, ["key", "new", *map(str, words)], input=typed)


def test_it_writes_a_pair_and_prints_its_id(tmp_path: Path) -> None:
    result = new(tmp_path / "release")
    public = signing.load_public(tmp_path / "release.pub")
    assert result.exit_code == 0
    assert result.output.splitlines()[-1] == f"id {public.id}"
    assert stat.S_IMODE((tmp_path / "release").stat().st_mode) == 0o600
    assert signing.load_private(tmp_path / "release").public.id == public.id
    repeated = new(tmp_path / "release")
    assert isinstance(repeated.exception, ConfigError)
    assert repeated.exception.exit_code == 2


def test_a_password_is_asked_for_or_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = new(tmp_path / "asked", "--password", typed="hunter2\nhunter2\n")
    assert result.exit_code == 0, result.output
    assert "hunter2" not in result.output
    assert signing.load_private(tmp_path / "asked", b"hunter2")
    monkeypatch.setenv(signing.PASSWORD, "s3cret")
    result = new(tmp_path / "told", "--password")
    assert "s3cret" not in result.output
    assert signing.load_private(tmp_path / "told", b"s3cret")


@pytest.mark.parametrize("typed", ["one\nother\n", "\n\n"])
def test_two_passwords_and_none_write_nothing(typed: str, tmp_path: Path) -> None:
    result = new(tmp_path / "key", "--password", typed=typed)
    assert isinstance(result.exception, ConfigError)
    assert list(tmp_path.iterdir()) == []


def test_a_password_in_the_variable_of_the_switch_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVCHECK_KEY_NEW_PASSWORD", "hunter2")
    result = new(tmp_path / "key")
    assert result.exit_code == 2
    assert "belongs into ENVCHECK_KEY_PASSWORD" in result.output
    assert "hunter2" not in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "more", "says"),
    [("b.pub", [], "would hold the private key"), ("key", ["--password"], "set ENVCHECK_KEY_PASSWORD")],
)
def test_a_public_name_and_a_password_without_a_terminal_are_refused(
    name: str, more: list[str], says: str, tmp_path: Path
) -> None:
    result = new(tmp_path / name, *more)
    assert isinstance(result.exception, ConfigError)
    assert says in str(result.exception)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("directory", [".", "/"])
def test_a_directory_is_no_file_for_a_key(directory: str) -> None:
    result = new(Path(directory))
    assert isinstance(result.exception, ConfigError)
    assert "is a directory; name a file in it" in str(result.exception)
