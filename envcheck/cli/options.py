"""The options of a command are one class below Options: each field has its type, its default and its help.

    max_bytes: Annotated[int, Option("Bytes for all mirrors together.", type=Size())] = 128_000_000

`Literal` is a choice, a tuple may be repeated, a bool is a flag; a field without a default must be given. What click's
own Option and Argument take passes through. Each option has a variable: ENVCHECK_MIRROR_PROBE_MAX_BYTES.
"""

import dataclasses
import functools
import math
import os
import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, TypeVar, Union, get_args, get_origin

import click
import msgspec

from envcheck.cli import Settings
from envcheck.cli.shared.process import say
from envcheck.errors import EnvcheckError, refuse

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform

    from envcheck.runner.local_python import Target
else:

    def dataclass_transform(**_settings: bool) -> Callable[[type], type]:
        """Do nothing: Python 3.10 has none, and it is for type checkers alone."""
        return lambda cls: cls


_HostArch = Literal["x86_64", "aarch64"]
FILE: Final = click.Path(path_type=Path, dir_okay=False)
EXISTING_FILE: Final = click.Path(path_type=Path, dir_okay=False, exists=True)
DIRECTORY: Final = click.Path(path_type=Path, file_okay=False)
EXISTING_DIRECTORY: Final = click.Path(path_type=Path, file_okay=False, exists=True)
# Host architectures as people and Docker name them.
ARCHS: Final[dict[str, _HostArch]] = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
_NUMBER: Final = r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([A-Za-z]{0,2})"


class Option:
    """How a field is written on the command line: its help, and its flags unless that is the field's name."""

    def __init__(self, *texts: str, **settings: Any) -> None:
        self.names = [text for text in texts if text.startswith("-")]
        self.settings = {"help": " ".join(text for text in texts if not text.startswith("-")), **settings}


class Argument:
    """A field that is given by its place."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings


ChecksDirectory = Annotated[
    Path | None, Option("--checks", "Directory with your own checks (node/*.py, env/*.py).", type=EXISTING_DIRECTORY)
]
ImagesDirectory = Annotated[Path | None, Option("--images", "Where the cells are. [images/]", type=EXISTING_DIRECTORY)]


_Struct = TypeVar("_Struct", bound="Options")


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Options:
    """Base of a command's options, which makes them frozen dataclasses."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    def __init_subclass__(cls) -> None:
        cls.__doc__ = cls.__doc__ or cls.__name__  # else dataclasses writes out every annotation
        dataclasses.dataclass(frozen=True, kw_only=True, repr=False, eq=False)(cls)


class JsonOption(Options):
    """The option of a command that programs read; it stands last."""

    as_json: Annotated[bool, Option("--json", "Print JSON.")] = False


class ReleaseOptions(Options):
    """The options of a command that asks for releases."""

    torch: Annotated[str | None, Option('A release or a requirement: 2.8, 2.8.0, ">=2.6,<2.9".', metavar="REQ")] = None
    cuda: Annotated[
        str | None,
        Option("--cuda", "--variant", "The wheel's CUDA: 12.8, or as its name says it.", metavar="X.Y|cuNNN|cpu"),
    ] = None
    python: Annotated[str | None, Option("Python version, e.g. 3.12 or 3.13t.", metavar="X.Y")] = None


class EnvironmentOptions(Options):
    """The options of a command that checks an environment."""

    python: Annotated[str | None, Option("The interpreter, or environment, to check.", metavar="PATH")] = None
    image: Annotated[str | None, Option("A local image to check; --python is in it.", metavar="REF")] = None
    require_gpu: Annotated[bool, Option("Fail if there is no GPU, instead of skipping.")] = False

    def target(self, shm_size: str = "8g") -> "Target":
        """Return what is checked; warn of an environment that others may change, and root would run."""
        from envcheck import safe_files
        from envcheck.runner import container, local_python

        if self.image is not None:
            return container.ContainerTarget(self.image, python=self.python, shm_size=shm_size)
        chosen = local_python.choose_python(Path(self.python) if self.python else None)
        if why := safe_files.others_may_change(chosen.python):
            say(f"warning: {why}, and root runs it; run as that user, or give --python an environment of root's")
        return local_python.LocalPython(local_python.answering(chosen))


class _WithUnit(click.ParamType[float]):
    """A number with one of `units`, above 0, or 0 with `zero`."""

    units: ClassVar[dict[str, int]]
    wanted: ClassVar[str]
    any_case = False  # and with a B

    def __init__(self, *, zero: bool = False) -> None:
        self._zero = zero

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        match = re.fullmatch(_NUMBER, str(value).strip())
        unit = match[2] if match else ""
        factor = self.units.get(unit.upper().removesuffix("B") if self.any_case else unit, -1)
        number = float(match[1]) * factor if match else -1.0
        if number == 0 and not self._zero:
            self.fail(f"{value!r} must be more than 0", param, ctx)
        if number < 0:
            self.fail(f"{value!r} is not a {self.name}: write {self.wanted}", param, ctx)
        return number

    def written(self, number: float | None) -> str | None:
        # A default as people type it: 600 is "10m".
        if not number:
            return None if number is None else "0"
        factor, unit = max((factor, unit) for unit, factor in self.units.items() if number % factor == 0)
        return f"{number / factor:.15g}{unit}"


class Duration(_WithUnit):
    """Seconds, from "90", "90s", "10m", "2h" or "1d"."""

    name = "time"
    units: ClassVar[dict[str, int]] = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
    wanted = "90s, 10m, 2h or 1d"


class Size(_WithUnit):
    """Bytes, or bytes a second, from "50G", "50g" or "50GB": 50 thousand million."""

    name = "size"
    units: ClassVar[dict[str, int]] = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
    wanted = "50G for 50 000 000 000 bytes"
    any_case = True

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return whole bytes; anything else is a usage error."""
        size = int(super().convert(value, param, ctx))
        return size if size or self._zero else self.fail(f"{value!r} is less than a byte", param, ctx)


class FiniteRange(click.FloatRange):
    """A number within bounds: NaN and infinity are refused, which click's own type takes."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; anything else is a usage error."""
        number = float(super().convert(value, param, ctx))
        return number if math.isfinite(number) else self.fail(f"{value!r} is not a number", param, ctx)


def exclusive(**given: object) -> None:
    """Refuse options of which more than one is given; their names are without dashes."""
    names = [f"--{name}" for name, value in given.items() if value]
    if len(names) > 1:
        refuse(f"{' and '.join(names)} exclude each other", "give one of them")


def architecture(platform: str) -> _HostArch:
    """Return the architecture of a platform as engines write it; "auto" is this machine's."""
    machine = os.uname().machine if platform == "auto" else platform.removeprefix("linux/")
    return ARCHS.get(machine, "x86_64")


def complete_cells(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the published cells that begin so; none where the matrix cannot be read: a shell is no place to say it."""
    from envcheck.matrix.file.load import load

    try:
        published = load(ctx.find_root().params.get("matrix")).cells()
    except (EnvcheckError, OSError):
        return []
    return [str(cell) for cell in published if str(cell).startswith(incomplete)]


def complete_checks(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the checks that begin so, a site's own with them; what is no check is left out."""
    from envcheck.runner.planning import discover

    try:
        modules = discover(ctx.params.get("checks"), lambda _error: None)
    except (EnvcheckError, OSError):
        return []
    return [f.id for f in modules if f.id.startswith(incomplete)]


class _ListedText(click.types.StringParamType):
    """Text that may be repeated; in an environment variable its values stand between commas, as GPUs have spaces."""

    envvar_list_splitter = ","


def _variable(ctx: click.Context, name: str) -> str | None:
    return os.environ.get(f"{ctx.auto_envvar_prefix}_{name.strip('-').replace('-', '_').upper()}") or None


class _Given(click.Parameter):
    """Refuses `--requirements "$SITE"` of a variable that is not set, instead of taking it for not given."""

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        given = ctx.get_parameter_source(self.name or "") is click.core.ParameterSource.COMMANDLINE
        if given and (value == "" or (isinstance(value, (list, tuple)) and "" in value)):
            message = "the value is empty, perhaps that of a variable that is not set"
            raise click.BadParameter(message, ctx=ctx, param=self)
        return super().type_cast_value(ctx, value)


class _Option(_Given, click.Option):
    advanced = False

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        return _variable(ctx, max(self.opts, key=len))


class _Argument(_Given, click.Argument):
    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        return _variable(ctx, "cell") if "CELL" in (self.metavar or "") else None


class _Command(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # click forgets whose option lacks its value.
        with click.core.augment_usage_errors(ctx):
            return super().parse_args(ctx, args)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help_text(ctx, formatter)
        texts = msgspec.yaml.decode(Path(__file__).with_name("help.yaml").read_bytes(), type=dict[str, str])
        if more := texts.get(ctx.command_path.partition(" ")[2]):
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(more.replace("\\b", "\b"))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [one for one in self.get_params(ctx) if isinstance(one, click.Option)]
        for heading, advanced in (("Options", False), ("Advanced", True)):
            shown = [one.get_help_record(ctx) for one in options if getattr(one, "advanced", False) == advanced]
            rows = [row for row in shown if row]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


def command_with(
    struct: type[_Struct], advanced: str = "", **settings: Any
) -> Callable[[Callable[[_Struct, Settings], int | None]], click.Command]:
    """Make a command of a function that takes its options as `struct`, and returns its exit code.

    From the field `advanced` on, options stand under a heading of their own: few people need them.
    """

    def decorate(body: Callable[[_Struct, Settings], int | None]) -> click.Command:
        @functools.wraps(body)
        def run(**values: Any) -> None:
            ctx = click.get_current_context()
            status = body(struct(**values), ctx.find_root().obj)
            if status:
                ctx.exit(status)

        is_last = "as_json" if issubclass(struct, JsonOption) else ""
        fields = sorted(dataclasses.fields(struct), key=lambda field: field.name == is_last)
        parameters = [_parameter(field) for field in fields]
        names = [field.name for field in fields]
        for parameter in parameters[names.index(advanced) :] if advanced else []:
            parameter.advanced = True  # type: ignore[attr-defined]  # an _Option
        return click.command(cls=_Command, params=parameters, **settings)(run)

    return decorate


def _parameter(field: dataclasses.Field[Any]) -> click.Parameter:
    kind, mark = get_args(field.type)
    repeated = get_origin(kind) is tuple and get_args(kind)[-1] is Ellipsis
    optional = get_origin(kind) in (Union, types.UnionType)
    inner = get_args(kind)[0] if repeated or optional else kind  # `X | None` has X first
    required = field.default is dataclasses.MISSING
    settings: dict[str, Any] = {"required": required, "type": _click_type(inner, repeated=repeated), **mark.settings}
    if not required and field.default != ():
        settings["default"] = getattr(settings["type"], "written", lambda default: default)(field.default)
    if isinstance(mark, Argument):
        return _Argument([field.name], nargs=-1 if repeated else 1, **settings)
    names = mark.names or (f"--{field.name.replace('_', '-')}",)
    if inner is bool:
        settings |= {"type": mark.settings.get("type"), "is_flag": True}
    settings.setdefault("show_default", field.default not in (dataclasses.MISSING, None, (), "", False))
    return _Option([*names, field.name], multiple=repeated, **settings)


def _click_type(kind: Any, *, repeated: bool) -> Any:
    if get_origin(kind) is Literal:
        return click.Choice(get_args(kind))
    if kind is Path:
        return click.Path(path_type=Path)
    return _ListedText() if kind is str and repeated else kind
