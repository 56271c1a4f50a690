"""`envcheck key new`: two files, an id, and a password that only the user knows."""

import stat
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from envcheck import signing
from envcheck.cli import cli
from envcheck.cli.commands import store as command_module
from envcheck.errors import ConfigError
from tests.processes import ran


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


def test_a_password_is_not_asked_for_where_standard_input_is_closed(tmp_path: Path) -> None:
    command = f"exec '{sys.executable}' -m envcheck key new --password '{tmp_path}/key' <&-"
    done = ran(["sh", "-c", command])
    assert (done.returncode, "standard input is not a terminal" in done.stderr) == (2, True), done.stderr


def test_a_password_is_asked_for_or_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = new(tmp_path / "asked", "--password", typed="hunter2\nother\nhunter2\nhunter2\n")
    assert result.exit_code == 0, result.output
    assert "hunter2" not in result.output
    assert signing.load_private(tmp_path / "asked", b"hunter2")
    monkeypatch.setenv(signing.PASSWORD, "s3cret")
    monkeypatch.setenv("ENVCHECK_KEY_NEW_PASSWORD", "hunter2")  # is no variable of the switch
    result = new(tmp_path / "told", "--password")
    assert "s3cret" not in result.output
    assert "hunter2" not in result.output
    assert signing.load_private(tmp_path / "told", b"s3cret")
