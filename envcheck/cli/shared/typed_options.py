"""The options of a command as one typed struct: an option is one field of the struct and one decorator.

    class JudgeOptions(NamedTuple):
        file: Path
        as_json: bool

    @click.command()
    @click.argument("file", type=click.Path(path_type=Path))
    @click.option("--json", "as_json", is_flag=True)
    @click.pass_obj
    @takes(JudgeOptions)
    def command(options: JudgeOptions, settings: Settings) -> None: ...

mypy checks what the command does with the fields; tests/cli/test_options.py compares the fields with the decorators.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

_Struct = TypeVar("_Struct")
_Rest = ParamSpec("_Rest")
_Result = TypeVar("_Result")
# The attribute of a command's callback that holds its struct.
STRUCT: Final = "options_struct"


def takes(
    struct: Callable[..., _Struct],
) -> Callable[[Callable[Concatenate[_Struct, _Rest], _Result]], Callable[_Rest, _Result]]:
    """Give a command its options as `struct`, before what click.pass_obj or click.pass_context gives it."""

    def decorate(body: Callable[Concatenate[_Struct, _Rest], _Result]) -> Callable[_Rest, _Result]:
        @functools.wraps(body)
        def command(*arguments: Any, **options: Any) -> _Result:
            return cast("Callable[..., _Result]", body)(struct(**options), *arguments)

        setattr(command, STRUCT, struct)
        return cast("Callable[_Rest, _Result]", command)

    return decorate
