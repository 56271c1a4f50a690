"""What every command is held to: no option that says nothing, and no pipe that closes unnoticed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from rich.console import Console


def refuse_empty(command: click.Command) -> None:
    """Have a command refuse `--require "$SITE"` of a variable that is not set, instead of taking it for not given."""
    if "parse_args" in command.__dict__:
        return
    parse = command.parse_args

    def strict(ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:
            return parse(ctx, args)
        given, _, order = command.make_parser(ctx).parse_args(list(args))
        for parameter in order:
            if _empty(given.get(parameter.name or "")):
                message = "nothing was given; a variable that is not set?"
                raise click.BadParameter(message, ctx=ctx, param=parameter)
        return parse(ctx, args)

    command.parse_args = strict  # type: ignore[method-assign]  # before click makes Paths of texts: "" would be "."


def console(**options: Any) -> Console:
    """Return a console that says when nobody reads it any more; rich's own would end with 1, which means a failure."""
    from rich.console import Console

    class Told(Console):
        def on_broken_pipe(self) -> NoReturn:
            raise BrokenPipeError

    return Told(**options)


def _empty(value: Any) -> bool:
    return value == "" or (isinstance(value, (list, tuple)) and "" in value)
