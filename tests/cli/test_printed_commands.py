"""Every command that a message, a help text or a rendered file names is one that parses: its options are there."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from envcheck.cli import _LazyGroup, cli
from tests.cli.test_options import COMMANDS

ROOT: Final = Path(__file__).parents[2]
# Options of other programs that remedies name.
OTHERS: Final = {
    "--map-by": "mpirun",
    "--ntasks-per-node": "srun",
}


def words_of(command: str) -> Iterator[list[str]]:
    """Yield the words behind `envcheck` of each part of a command."""
    for part in command.split(";"):
        try:
            words = shlex.split(part)
        except ValueError:  # a quote that only the whole text closes
            words = part.replace("'", " ").replace('"', " ").split()
        if words[:1] == ["envcheck"]:
            yield words[1:]


def texts() -> Iterator[tuple[str, str]]:
    """Yield each text that may be printed, with the file it is in; what is formatted into it is X."""
    for path in sorted((ROOT / "envcheck").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (str(one.value) if isinstance(one, ast.Constant) else "X" for one in node.values)
                yield str(path.relative_to(ROOT)), "".join(parts)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield str(path.relative_to(ROOT)), node.value
    tables = [one for one in (ROOT / "envcheck").rglob("*") if one.suffix in (".json", ".yaml", ".toml", ".j2")]
    pages = [one for name in ("templates", ".ci", ".github", "docs") for one in (ROOT / name).rglob("*")]
    for path in sorted(one for one in (*tables, *pages) if one.is_file()):
        text = path.read_text(encoding="utf-8", errors="replace")
        yield str(path.relative_to(ROOT)), re.sub(r"\{\{.*?\}\}", "X", text)


def commands() -> Iterator[tuple[str, str]]:
    """Yield each command in backticks, and each line of a text that is one, with its file."""
    for where, text in texts():
        yield from ((where, actual) for actual in re.findall(r"`(envcheck [a-z-][^`]*)`", text))
        # An example of a help text ends where two spaces begin its explanation.
        lines = re.findall(r"(?m)^ *(envcheck [a-z-].*?)(?:  .*| [|>].*|\\)?$", text)
        yield from ((where, line) for line in lines if line.split()[1] in cli.described)


ALL: Final = sorted(set(commands()))


def wrong(words: list[str], command: click.Command = cli) -> str | None:
    """Return the first word that is no command or option here; None where all are. Values are passed over."""
    if isinstance(command, _LazyGroup):
        words = command.with_command(words)
    flags = {name: one for one in command.params for name in (*one.opts, *one.secondary_opts)}
    remaining = iter(words)
    for word in remaining:
        if word == "--":  # what follows is another program's
            return None
        option, _, value = word.partition("=")
        if option in ("--help", "--version", "..."):
            continue
        if word.startswith("-"):
            if option not in flags:
                return option
            if not getattr(flags[option], "is_flag", False) and not value:
                next(remaining, None)
        elif isinstance(command, click.Group):
            inner = command.get_command(click.Context(command), word)
            return word if inner is None and word.islower() else wrong([*remaining], inner) if inner else None
        elif not any(isinstance(one, click.Argument) for one in command.params):
            return word
    return None


def test_each_command_that_is_printed_parses() -> None:
    assert len(ALL) > 100
    assert [(where, command) for where, command in ALL if any(map(wrong, words_of(command)))] == []


def test_an_option_that_a_remedy_names_is_there() -> None:
    commands = [cli, *COMMANDS.values()]
    known = {name for one in commands for option in one.params for name in (*option.opts, *option.secondary_opts)}
    named = {
        (str(path.relative_to(ROOT)), option)
        for path in (ROOT / "envcheck").rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
        for remedy in (
            *(keyword.value for keyword in call.keywords if keyword.arg in ("fix", "remedy")),
            *(call.args[1:2] if isinstance(call.func, ast.Name) and call.func.id == "refuse" else ()),
        )
        for part in ast.walk(remedy)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
        for option in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", part.value)
    }
    assert len(named) > 30
    assert {row for row in named if row[1] not in {"--help", *OTHERS, *known}} == set()
    assert OTHERS.keys() <= {option for _, option in named}
