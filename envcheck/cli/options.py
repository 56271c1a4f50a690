"""The options of a command are one frozen dataclass: each field has its type, its default and its help.

    @dataclass(frozen=True, kw_only=True)
    class ProbeOptions:
        cells: Annotated[tuple[str, ...], Argument(metavar="[CELL]", shell_complete=complete_cells)] = ()
        mirrors: Annotated[tuple[str, ...], Option("--mirror", metavar="PROFILE", help="Repeatable.")] = ()
        lock: Annotated[Path | None, Option(type=EXISTING_FILE, help="Probe for every file of a lock.")] = None
        max_bytes: Annotated[int, Option(type=Size(), help="Bytes for all mirrors together.")] = 128_000_000
        level: Annotated[Literal["static", "quick"], Option(help="How much to check.", advanced=True)] = "quick"
        as_json: Annotated[bool, Option("--json", help="Print envcheck/ranking/2.")] = False

    @command_with(ProbeOptions, epilog="...")
    def command(options: ProbeOptions, settings: Settings) -> int: ...

`Literal` is a choice, a tuple may be repeated, a bool is a flag; a field without a default must be given. What click's
own Option and Argument take passes through. Each option has a variable: ENVCHECK_MIRROR_PROBE_MAX_BYTES.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import types
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import click

if TYPE_CHECKING:
    from envcheck.cli import Settings

_Struct = TypeVar("_Struct")
FILE: Final = click.Path(path_type=Path, dir_okay=False)
EXISTING_FILE: Final = click.Path(path_type=Path, dir_okay=False, exists=True)
DIRECTORY: Final = click.Path(path_type=Path, file_okay=False)
EXISTING_DIRECTORY: Final = click.Path(path_type=Path, file_okay=False, exists=True)


class Option:
    """How a field is written on the command line: its help, and its flags unless that is the field's name."""

    def __init__(self, *texts: str, advanced: bool = False, **settings: Any) -> None:
        self.names = [text for text in texts if text.startswith("-")]
        self.advanced = advanced
        self.settings = {"help": " ".join(text for text in texts if not text.startswith("-")), **settings}


class Argument:
    """A field that is given by its place."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings


class ListedText(click.types.StringParamType):
    """Text that may be repeated; in an environment variable its values stand between commas, as GPUs have spaces."""

    envvar_list_splitter = ","


def _refuse_empty(parameter: click.Parameter, ctx: click.Context, value: Any) -> None:
    """Refuse `--requirements "$SITE"` of a variable that is not set, instead of taking it for not given."""
    given = ctx.get_parameter_source(parameter.name or "") is click.core.ParameterSource.COMMANDLINE
    if given and (value == "" or (isinstance(value, (list, tuple)) and "" in value)):
        message = "the value is empty, perhaps that of a variable that is not set"
        raise click.BadParameter(message, ctx=ctx, param=parameter)


def _variable(ctx: click.Context, name: str) -> str | None:
    return os.environ.get(f"{ctx.auto_envvar_prefix}_{name.strip('-').replace('-', '_').upper()}") or None


class _Option(click.Option):
    def __init__(self, *names: Any, advanced: bool, **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.advanced = advanced

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        return _variable(ctx, max(self.opts, key=len))

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        _refuse_empty(self, ctx, value)
        return super().type_cast_value(ctx, value)


class _Argument(click.Argument):
    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        return _variable(ctx, "cell") if "CELL" in (self.metavar or "") else None

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        _refuse_empty(self, ctx, value)
        return super().type_cast_value(ctx, value)


class OptionsCommand(click.Command):
    """A command whose help shows the options that most people need before the others."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, the advanced ones under a heading of their own."""
        for heading, advanced in (("Options", False), ("Advanced", True)):
            options = [one for one in self.get_params(ctx) if isinstance(one, click.Option)]
            parameters = [one for one in options if getattr(one, "advanced", False) == advanced]
            rows = [row for one in parameters if (row := one.get_help_record(ctx)) is not None]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


def command_with(
    struct: type[_Struct], **settings: Any
) -> Callable[[Callable[[_Struct, Settings], int | None]], click.Command]:
    """Make a command of a function that takes its options as `struct`, and returns its exit code."""

    def decorate(body: Callable[[_Struct, Settings], int | None]) -> click.Command:
        @functools.wraps(body)
        def run(**values: Any) -> None:
            ctx = click.get_current_context()
            status = body(struct(**values), ctx.find_root().obj)
            if status:
                ctx.exit(status)

        hints = get_type_hints(struct, include_extras=True)
        parameters = [_parameter(field, hints[field.name]) for field in dataclasses.fields(struct)]  # type: ignore[arg-type]  # a dataclass
        return click.command(cls=OptionsCommand, params=parameters, **settings)(run)

    return decorate


def _parameter(field: dataclasses.Field[Any], hint: Any) -> click.Parameter:
    """Return click's parameter of a field."""
    kind, mark = get_args(hint)
    repeated = get_origin(kind) is tuple and get_args(kind)[-1] is Ellipsis
    inner = get_args(kind)[0] if repeated else _without_none(kind)
    required = field.default is dataclasses.MISSING
    settings: dict[str, Any] = {"required": required, "type": _click_type(inner, repeated=repeated), **mark.settings}
    if not required and field.default != ():
        settings["default"] = getattr(settings["type"], "written", _same)(field.default)
    if isinstance(mark, Argument):
        return _Argument([field.name], nargs=-1 if repeated else 1, **settings)
    names = mark.names or (f"--{field.name.replace('_', '-')}",)
    if inner is bool:
        settings |= {"type": mark.settings.get("type"), "is_flag": True}
    settings.setdefault("show_default", field.default not in (dataclasses.MISSING, None, (), "", False))
    return _Option([*names, field.name], multiple=repeated, advanced=mark.advanced, **settings)


def _same(default: Any) -> Any:
    return default


def _without_none(kind: Any) -> Any:
    if get_origin(kind) not in (Union, types.UnionType):
        return kind
    return next(one for one in get_args(kind) if one is not type(None))


def _click_type(kind: Any, *, repeated: bool) -> Any:
    if get_origin(kind) is Literal:
        return click.Choice(get_args(kind))
    if kind is Path:
        return click.Path(path_type=Path)
    return ListedText() if kind is str and repeated else kind
