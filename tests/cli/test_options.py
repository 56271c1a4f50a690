"""Every command's options are one typed struct, one name means one thing, and old spellings name the new ones."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from collections.abc import Iterator
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import click
import pytest
from click.testing import CliRunner

from envcheck.cli import cli
from envcheck.cli.shared.strict_options import OLD_COMMANDS, OLD_OPTIONS, variable
from envcheck.cli.shared.typed_options import STRUCT


def walk(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    """Return every command below a group by its path, "store gc"."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        here = f"{path} {name}".strip()
        yield here, command
        if isinstance(command, click.Group):
            yield from walk(command, here)


COMMANDS: Final = dict(walk(cli, ""))
LEAVES: Final = {path: one for path, one in COMMANDS.items() if not isinstance(one, click.Group) and one.params}
SIMPLE: Final[dict[type[click.ParamType[Any]], type]] = {
    click.types.StringParamType: str,
    click.types.BoolParamType: bool,
    click.types.IntParamType: int,
    click.types.FloatParamType: float,
}


@pytest.mark.parametrize("path", COMMANDS)
def test_help_fits_80_columns(path: str) -> None:
    shown = CliRunner().invoke(cli, [*path.split(), "--help"], env={"COLUMNS": "80"})
    assert shown.exit_code == 0, shown.output
    assert [line for line in shown.output.splitlines() if len(line) > 80] == []


def struct_of(command: click.Command) -> dict[str, Any]:
    """Return the fields of a command's struct with their types."""
    struct = getattr(command.callback, STRUCT)
    assert issubclass(struct, tuple)
    return get_type_hints(struct)


def value_type(kind: click.ParamType[Any], expected: Any) -> Any:
    """Return the type of one value of a parameter; `wanted` says whether its choices are listed or only a str."""
    if isinstance(kind, click.Choice):
        return Literal[tuple(kind.choices)] if get_origin(expected) is Literal else str
    if isinstance(kind, click.Path):
        return kind.type
    if isinstance(kind, click.Tuple):
        return types.GenericAlias(tuple, tuple(value_type(one, None) for one in kind.types))
    for known, result in SIMPLE.items():
        if isinstance(kind, known):
            return result
    # One of ours says it: class Duration(click.ParamType[float]).
    return get_type_hints(type(kind).convert)["return"] if not hasattr(kind, "path_type") else None


def field_type(parameter: click.Parameter, expected: Any) -> Any:
    """Return what a parameter gives its command: bool of a flag, a tuple of what may come twice, None if absent."""
    if parameter.multiple or parameter.nargs == -1:
        return types.GenericAlias(tuple, (value_type(parameter.type, next(iter(get_args(expected)), None)), ...))
    if getattr(parameter, "is_flag", False):
        return bool if parameter.default is not None else bool | None
    inner = [arg for arg in get_args(expected) if arg is not type(None)]
    optional = len(inner) == 1 and get_origin(expected) is not Literal
    result = value_type(parameter.type, inner[0] if optional else expected)
    return result if parameter.required or parameter.to_info_dict()["default"] is not None else result | None


def test_all_commands_are_looked_at() -> None:
    assert {"run", "build", "report convert", "store gc", "mirror site render"} < set(LEAVES)


@pytest.mark.parametrize("path", LEAVES)
def test_the_fields_of_the_struct_are_the_parameters_of_the_decorators(path: str) -> None:
    command = LEAVES[path]
    fields = struct_of(command)
    parameters = {parameter.name: parameter for parameter in command.params}
    assert list(fields) == list(parameters)
    wrong = {
        name: (fields[name], expected)
        for name, parameter in parameters.items()
        if fields[name] != (expected := field_type(parameter, fields[name]))
    }
    assert wrong == {}


def test_no_two_commands_share_a_struct_name() -> None:
    names = [getattr(command.callback, STRUCT).__qualname__ for command in LEAVES.values()]
    assert sorted(names) == sorted(set(names))
    assert all(name.endswith("Options") for name in names)


OLD: Final = [(path, old, new) for path, options in OLD_OPTIONS.items() for old, new in options.items()]


def refusal(*argv: str, **environ: str) -> str:
    """Return the line that refuses a command line."""
    completed = subprocess.run(
        [sys.executable, "-m", "envcheck", *argv],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environ},
    )
    assert (completed.returncode, completed.stdout, completed.stderr.count("\n")) == (2, "", 1), (
        argv,
        completed.stderr,
    )
    return completed.stderr


def named(path: str, new: str) -> bool:
    """Tell whether a command has this option, with this value, or an argument that is called so."""
    option, _, value = new.partition(" ")
    for parameter in COMMANDS[path].params:
        if option in parameter.opts:
            return not value or value in getattr(parameter.type, "choices", ())
        if isinstance(parameter, click.Argument) and option in (parameter.metavar or ""):
            return True
    return False


@pytest.mark.parametrize(("path", "old", "new"), OLD)
def test_an_old_option_names_the_new_one(path: str, old: str, new: str) -> None:
    assert named(path, new)
    assert not named(path, old)
    for words in ([old, "x"], [f"{old}=x"]):
        assert f"{old} is now" in (text := refusal(*path.split(), *words))
        assert new in text


@pytest.mark.parametrize(("path", "old", "new"), [row for row in OLD if row[2].startswith("-")])
def test_the_variable_of_an_old_option_names_the_new_one(
    path: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable(path, old), "x")
    words = [word for one in COMMANDS[path].params if one.required for word in given(one)]
    result = CliRunner().invoke(cli, [*path.split(), *words])
    assert result.exit_code == 2
    now = variable(path, new.split(maxsplit=1)[0]) if new.startswith("-") else new
    assert f"the variable {variable(path, old)} is now" in result.output
    assert now in result.output


def given(parameter: click.Parameter) -> list[str]:
    """Return words that give a required parameter a value it takes."""
    place = "/proc/self/status" if getattr(parameter.type, "file_okay", True) else "/proc"
    choices = getattr(parameter.type, "choices", [place])
    return [*([parameter.opts[0]] if isinstance(parameter, click.Option) else []), str(next(iter(choices)))]


def test_what_an_old_variable_asked_for_is_never_left_out() -> None:
    text = refusal("run", "--dry-run", ENVCHECK_RUN_REQUIRE="hgx-h100")
    assert "the variable ENVCHECK_RUN_REQUIRE is now ENVCHECK_RUN_REQUIREMENTS" in text


@pytest.mark.parametrize("path", [path for path, options in OLD_OPTIONS.items() if "--cell" in options])
def test_the_variable_of_a_cell_is_the_arguments(path: str) -> None:
    (argument,) = (one for one in COMMANDS[path].params if "CELL" in (one.metavar or ""))
    assert argument.envvar == variable(path, "--cell")
    assert argument.nargs == 1 or argument.type.envvar_list_splitter == ","


def test_each_result_goes_where_output_says_and_each_format_is_called_format() -> None:
    options = {
        (path, name)
        for path, command in COMMANDS.items()
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for name in parameter.opts
    }
    assert {path for path, name in options if name == "--output"} == {path for path, name in options if name == "-o"}
    # `promote --to TAG` is where an alias moves, and no file.
    named = {name for path, name in options if (path, name) != ("promote", "--to")}
    assert not named & {"--out", "--to", "--dest", "--markdown", "--profile", "--require"}


@pytest.mark.parametrize("name", ["--limit", "--only", "--connections", "--skip", "--level", "--checks", "--engine"])
def test_an_option_means_one_thing_over_all_commands(name: str) -> None:
    kinds = {
        (type(parameter.type), parameter.multiple, getattr(parameter, "is_flag", False))
        for command in COMMANDS.values()
        for parameter in command.params
        if name in parameter.opts
    }
    assert len(kinds) == 1


@pytest.mark.parametrize("path", ["build", "mirror site render"])
def test_an_option_of_the_whole_program_after_a_command_names_its_place(path: str) -> None:
    assert f"--quiet belongs before the command: `envcheck --quiet {path} ...`" in refusal(*path.split(), "--quiet")
    assert "belongs" not in refusal(*path.split(), "--quite")


@pytest.mark.parametrize(("old", "new"), OLD_COMMANDS.items())
def test_an_old_command_names_the_new_one(old: str, new: str) -> None:
    assert new in COMMANDS
    assert old not in COMMANDS
    assert f"`{old}` is now `{new}`" in refusal(*old.split(), "--help")


@pytest.mark.parametrize(("old", "new"), OLD_COMMANDS.items())
def test_the_variable_of_an_old_command_names_the_new_one(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{variable(old)}_MIRROR", "x")
    result = CliRunner().invoke(cli, new.split())
    assert result.exit_code == 2
    assert f"`{old}`, which is now `{new}`: use {variable(new)}_" in result.output
