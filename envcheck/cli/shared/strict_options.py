"""What every command is held to: no option without a value, and no spelling of before 1.0 that passes unnoticed."""

from __future__ import annotations

import os
from typing import Any, Final

import click

# Each old option of a command, and what stands for it now: an option, with its value where it was a flag, or an
# argument in capitals.
OLD_OPTIONS: Final = {
    "build": {"--dest": "--output"},
    "checks": {"--markdown": "--format markdown"},
    "fetch": {"--cell": "CELL", "--to": "--output"},
    "mirror audit": {"--cell": "CELL"},
    "mirror probe": {"--for": "CELL", "--must-stay": "--no-redirect-hosts", "--limit": "--max-bytes"},
    "mirror show": {"--to": "--output"},
    "mirror site render": {"--profile": "--mirror"},
    "render": {"--out": "--output"},
    "report convert": {"--to": "--format", "--out": "--output"},
    "report redact": {"--out": "--output"},
    "run": {"--require": "--requirements"},
    "store export": {"--cell": "CELL"},
    "store import": {"--no-publish": "--no-release"},
    "store release": {"--cell": "CELL", "--only": "--replace"},
}
OLD_COMMANDS: Final = {"store publish": "store release"}


def variable(path: str, option: str = "") -> str:
    """Return the environment variable of an option: ENVCHECK_STORE_GC_MAX_SIZE of "store gc" and "--max-size"."""
    return "_".join(["ENVCHECK", *path.split(), *option.strip("-").split("-")]).rstrip("_").upper()


def make_strict(command: click.Command, path: str) -> None:
    """Have a command refuse empty values, old options, their variables and old commands, each with one line."""
    if "parse_args" in command.__dict__:
        return
    parse = command.parse_args

    def strict(ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:
            return parse(ctx, args)
        _refuse_old_and_empty(command, ctx, args, OLD_OPTIONS.get(path, {}))
        left = parse(ctx, args)
        _refuse_old_variables(ctx, path)
        return left

    command.parse_args = strict  # type: ignore[method-assign]  # before click makes Paths of texts: "" would be "."
    if isinstance(command, click.Group):
        _refuse_old_commands(command, path)


def _refuse_old_and_empty(command: click.Command, ctx: click.Context, args: list[str], old: dict[str, str]) -> None:
    """Refuse `--requirements "$SITE"` of a variable that is not set, instead of taking it for not given."""
    try:
        values, _, order = command.make_parser(ctx).parse_args(list(args))
    except click.NoSuchOption as error:
        message = _place_or_name(ctx, error.option_name, old)
        if message is None:
            raise
        raise click.UsageError(message, ctx) from error
    for parameter in order:
        if _empty(values.get(parameter.name or "")):
            message = "the value is empty, perhaps that of a variable that is not set"
            raise click.BadParameter(message, ctx=ctx, param=parameter)


def _place_or_name(ctx: click.Context, option: str, old: dict[str, str]) -> str | None:
    """Return how an option is spelled now, or where it belongs: those of the whole program precede the command."""
    if option in old:
        return f"{option} is now {_new(old[option])}"
    root = ctx.find_root()
    if root is ctx or not any(option in parameter.opts for parameter in root.command.params):
        return None
    inside = ctx.command_path.removeprefix(root.command_path).strip()
    return f"{option} belongs before the command: `{root.command_path} {option} {inside} ...`"


def _refuse_old_variables(ctx: click.Context, path: str) -> None:
    """Refuse a variable that was an option's: what it asks for, as requirements, would be left out unnoticed."""
    for option, new in OLD_OPTIONS.get(path, {}).items():
        # The variable of --cell is now the argument's.
        if new.startswith("-") and os.environ.get(variable(path, option)):
            message = f"the variable {variable(path, option)} is now {variable(path, new.partition(' ')[0])}"
            raise click.UsageError(message, ctx)
    for before in (before for before, now in OLD_COMMANDS.items() if now == path):
        prefix = f"{variable(before)}_"
        for name in (name for name, value in os.environ.items() if name.startswith(prefix) and value):
            message = f"the variable {name} belongs to `{before}`, which is now `{path}`: use {variable(path)}_..."
            raise click.UsageError(message, ctx)


def _refuse_old_commands(group: click.Group, path: str) -> None:
    resolve = group.resolve_command

    def resolve_new(ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        before = f"{path} {args[0]}" if args else path
        if before in OLD_COMMANDS:
            ctx.fail(f"`{before}` is now `{OLD_COMMANDS[before]}`")
        return resolve(ctx, args)

    group.resolve_command = resolve_new  # type: ignore[method-assign]  # of this group alone


def _new(spelling: str) -> str:
    return spelling if spelling.startswith("-") else f"an argument without an option: {spelling}"


def _empty(value: Any) -> bool:
    return value == "" or (isinstance(value, (list, tuple)) and "" in value)
