"""The options of a command come from one class, and one name means one thing over all commands."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import click
import msgspec
import pytest
from click.testing import CliRunner, Result

from envcheck.cli import Settings, cli, options
from envcheck.cli.options import EXISTING_FILE, Argument, Duration, Option, Options, Size, command_with


class TrialOptions(Options):
    """One option of each form."""

    cells: Annotated[tuple[str, ...], Argument(metavar="[CELL]", shell_complete=lambda *_: ["torch2.8"])] = ()
    mirrors: Annotated[tuple[str, ...], Option("--mirror", metavar="PROFILE", help="Repeatable.")] = ()
    max_bytes: Annotated[int, Option(type=Size(), help="Bytes.")] = 128_000_000
    longest: Annotated[float | None, Option(type=Duration(), help="Time.")] = None
    level: Annotated[Literal["static", "quick"], Option(help="Level.")] = "quick"
    output: Annotated[Path | None, Option("-o", "--output", help="File.")] = None
    here: Annotated[bool | None, Option("--here/--no-here", help="Here.")] = None
    as_json: Annotated[bool, Option("--json", help="JSON.")] = False
    lock: Annotated[Path | None, Option(type=EXISTING_FILE, help="Lock.")] = None
    count: Annotated[int, Option(help="Count.")] = 3


@pytest.fixture
def seen() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def trial(seen: list[dict[str, Any]]) -> click.Command:
    @command_with(TrialOptions, "lock", epilog="The end.")
    def command(options: TrialOptions, _settings: Settings) -> int:
        """Try."""
        seen.append(vars(options))
        return 4

    return command


def call(command: click.Command, *args: str, **environ: str) -> Result:
    return CliRunner().invoke(command, args, env=environ, auto_envvar_prefix="ENVCHECK_TRY", terminal_width=80)


def test_what_is_not_given_has_the_default_of_its_field(trial: click.Command, seen: list[dict[str, Any]]) -> None:
    assert call(trial).exit_code == 4
    assert seen == [vars(TrialOptions())]


def test_what_is_given_has_the_type_of_its_field(trial: click.Command, seen: list[dict[str, Any]]) -> None:
    words = "a b --mirror m --mirror n --max-bytes 2G --longest 10m --level static -o x --no-here --json --count 5"
    assert call(trial, *words.split()).exit_code == 4
    given = TrialOptions(
        cells=("a", "b"),
        mirrors=("m", "n"),
        max_bytes=2_000_000_000,
        longest=600.0,
        level="static",
        output=Path("x"),
        here=False,
        as_json=True,
        count=5,
    )
    assert seen == [vars(given)]


def test_a_variable_gives_what_its_flag_would(trial: click.Command, seen: list[dict[str, Any]]) -> None:
    environ = {"MIRROR": "a b,c", "MAX_BYTES": "1K", "JSON": "1", "CELL": "x,y", "LEVEL": ""}
    assert call(trial, **{f"ENVCHECK_TRY_{name}": value for name, value in environ.items()}).exit_code == 4
    assert seen == [vars(TrialOptions(mirrors=("a b", "c"), max_bytes=1000, as_json=True, cells=("x", "y")))]


def test_help_has_defaults_as_people_type_them_and_a_heading_for_what_few_need(trial: click.Command) -> None:
    text = call(trial, "--help").output
    assert "[default: 128M]" in text
    assert "[default: quick]" in text
    assert "default: None" not in text
    assert text.index("--json") < text.index("Advanced:") < text.index("--lock") < text.index("[default: 3]")
    assert text.rstrip().endswith("The end.")


def test_what_cannot_be_meant_is_a_usage_error(trial: click.Command, seen: list[dict[str, Any]]) -> None:
    wrong = [["--mirror", ""], [""], ["--level", "all"], ["--lock", "/nowhere"], ["--max-bytes", "much"], ["--mirr"]]
    assert [words for words in wrong if call(trial, *words).exit_code != 2] == []
    assert seen == []


def walk(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        here = f"{path} {name}".strip()
        yield here, command
        if isinstance(command, click.Group):
            yield from walk(command, here)


COMMANDS: Final = dict(walk(cli, ""))


def test_each_command_has_help_of_80_columns() -> None:
    wrong = {}
    for path in COMMANDS:
        shown = CliRunner().invoke(cli, [*path.split(), "--help"], env={"COLUMNS": "80"})
        long = [line for line in shown.output.splitlines() if len(line) > 80]
        if shown.exit_code or long:
            wrong[path] = long
    assert wrong == {}


def test_each_text_below_the_first_line_of_a_help_is_that_of_a_command() -> None:
    texts = msgspec.yaml.decode(Path(options.__file__).with_name("help.yaml").read_bytes())
    assert texts.keys() <= COMMANDS.keys()
    shown = _help("store", "export")
    assert "without a\n  network.\n\n  The same contents give the same bytes." in shown
    # The lines of an example stay apart.
    assert "\n  envcheck report judge last-month.json\n  envcheck --matrix" in _help("report", "judge")


def _help(*words: str) -> str:
    return CliRunner().invoke(cli, [*words, "--help"]).output


def test_each_option_is_told_in_a_sentence() -> None:
    options = [
        (path, one) for path, command in COMMANDS.items() for one in command.params if isinstance(one, click.Option)
    ]
    told = {f"{path} {one.name}": one.help or "" for path, one in options}
    assert [where for where, text in told.items() if not re.search(r"[.\])]$", text)] == []


def test_an_option_means_one_thing_over_all_commands() -> None:
    kinds: dict[str, set[tuple[object, ...]]] = {}
    for command in COMMANDS.values():
        for parameter in command.params:
            for name in parameter.opts:
                kind = type(parameter.type), parameter.multiple, getattr(parameter, "is_flag", False)
                kinds.setdefault(name, set()).add(kind)
    names = ["--only", "--connections", "--skip", "--level", "--checks", "--engine"]
    assert [name for name in names if len(kinds.get(name, ())) > 1] == []
    assert not {"--out", "--dest", "--markdown", "--profile", "--require"} & set(kinds)
