"""What every command has in common: help, one line for bad input, the exit code of its error."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from envcheck import __version__
from envcheck.cli import COMMANDS, cli
from envcheck.errors import EnvcheckError


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "envcheck", *args], capture_output=True, text=True, check=False)


def subclasses(error: type[EnvcheckError]) -> list[type[EnvcheckError]]:
    return [error, *(found for child in error.__subclasses__() for found in subclasses(child))]


def test_the_version_is_the_packages() -> None:
    assert __version__ in run("--version").stdout


def test_help_names_every_command_within_80_columns() -> None:
    result = CliRunner().invoke(cli, ["--help"])
    assert result.exit_code == 0
    assert all(name in result.output for name in COMMANDS)
    assert max(map(len, result.output.splitlines())) <= 80


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help_with_an_example(name: str) -> None:
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert f"envcheck {name}" in result.output
    assert max(map(len, result.output.splitlines())) <= 80


def test_an_unknown_command_is_a_usage_error() -> None:
    done = run("resolv")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "did you mean 'resolve'" in done.stderr.lower()


def test_a_wrong_option_is_one_line_that_says_where_to_look() -> None:
    done = run("run", "--level", "everything")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "'standard'" in done.stderr
    assert "envcheck run --help" in done.stderr


def test_an_unreadable_file_is_one_line() -> None:
    done = run("--matrix", "/nowhere/matrix.yaml", "matrix", "check")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "/nowhere/matrix.yaml" in done.stderr


def test_exit_codes_are_the_documented_ones() -> None:
    assert {error.exit_code for error in subclasses(EnvcheckError)} <= {1, 2, 3}


def test_a_command_module_is_a_click_command() -> None:
    for name in COMMANDS:
        assert isinstance(cli.get_command(click.Context(cli), name), click.Command)
