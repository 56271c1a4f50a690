"""The command line: one file a command, imported only when that command runs."""

import errno
import importlib
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from envcheck import __version__
from envcheck.cli.shared import process
from envcheck.errors import ConfigError, EnvcheckError, UnavailableError
from envcheck.mirrors.net.waits import announced
from envcheck.struct_types import LightRecord

# The commands in the sections of --help, the groups of commands with their help, where a command is, other words.
_TABLE: Final = msgspec.json.decode(Path(__file__).with_name("commands.json").read_bytes())
# What people type first, by the name that it has here.
_MEANT: Final = {word: name for name, words in _TABLE["meant"].items() for word in words}
# A write that began and could not end: what it was to show is undetermined, nothing was typed wrong.
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})
# What the envcheck of an image comes without (pyproject.toml, the group `image`).
_HOST_ONLY: Final = {"cryptography", "docker", "jinja2", "urllib3", "uv"}


class _LazyGroup(click.Group):
    """Commands in sections, each imported when it runs: `modules` says where it is, if not in a file of its name.

    With a default the group is itself a command: words that begin with no command's name are those of the default.
    """

    def __init__(
        self, *, path: str, sections: Mapping[str, Mapping[str, str]], modules: Mapping[str, str], **settings: Any
    ) -> None:
        self.default = settings.pop("default", "")
        super().__init__(**settings)
        self.path, self.sections, self.modules = path, sections, modules
        self.described = {name: line for section in sections.values() for name, line in section.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        return list(self.described)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 (click's signature)
        if cmd_name not in self.described:
            return None
        if group := GROUPS.get(f"{self.path} {cmd_name}".strip()):
            return group
        module, _, name = self.modules.get(cmd_name, cmd_name).partition(":")
        command: click.Command = getattr(importlib.import_module(f"envcheck.cli.commands.{module}"), name or "command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.described:
            import difflib  # here, as a start that names its command needs none

            meant = [_MEANT[args[0]]] if args[0] in _MEANT and not self.path else []
            meant += [f"{path} {args[0]}" for path, group in GROUPS.items() if args[0] in group.described]
            for near in meant[:1] or difflib.get_close_matches(args[0], self.described, 1):
                ctx.fail(f"No such command {args[0]!r} (did you mean {near!r}?)")
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self.with_command(args))

    def with_command(self, args: list[str]) -> list[str]:
        named = not self.default or (args and args[0] in (*self.described, "-h", "--help"))
        return args if named else [self.default, *args]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        default = self.get_command(ctx, self.default)
        if default:
            default.format_options(ctx, formatter)
            self.format_commands(ctx, formatter)
        else:
            super().format_options(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        widest = max(map(len, self.described))
        for heading, described in self.sections.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(widest), line) for name, line in described.items()])


def _group(path: str, *, help: list[str], described: Mapping[str, str], **table: Any) -> _LazyGroup:  # noqa: A002 (click's name)
    words: dict[str, Any] = {"subcommand_metavar": "[CELL]... | COMMAND [ARGS]..."} if "default" in table else {}
    name = path.rpartition(" ")[2]
    return _LazyGroup(path=path, name=name, help="\n".join(help), sections={"Commands": described}, **words, **table)


GROUPS: Final = {path: _group(path, **table) for path, table in _TABLE["groups"].items()}


class Settings(LightRecord, frozen=True):
    """The global options."""

    matrix: Path | None
    verbose: bool
    quiet: bool


class PipeClosedError(Exception):
    """Whoever read our output has gone."""


class _Program(_LazyGroup):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            # click would exit 1, which here says that something was found wrong.
            raise PipeClosedError from error


@click.group(
    cls=_Program,
    path="",
    sections=_TABLE["sections"],
    modules=_TABLE["modules"],
    context_settings={"auto_envvar_prefix": "ENVCHECK", "help_option_names": ["-h", "--help"], "max_content_width": 80},
)
@click.version_option(__version__, prog_name="envcheck")
@click.option("--matrix", type=click.Path(path_type=Path), help="Facts and choices to use instead of the shipped ones.")
@click.option("--verbose", is_flag=True, help="Show more: each check of a run, all of a build's output.")
@click.option("--quiet", is_flag=True, help="Print only the result.")
@click.pass_context
def cli(ctx: click.Context, *, matrix: Path | None, verbose: bool, quiet: bool) -> None:
    """PyTorch/CUDA environments that are proven, not hoped for.

    \b
    envcheck resolve --gpu H100 --driver 550.54.14
    envcheck build torch2.13.0-cpu-py311 --mirror host
    envcheck run --image REF
    """
    ctx.obj = Settings(matrix=matrix, verbose=verbose, quiet=quiet)
    if not quiet:
        ctx.with_resource(announced(process.note))


def main() -> None:
    """Run the command line as a process; every error is one line and its exit code."""
    process.ready()
    process.forget_names()
    with process.signals_raised():
        status = _status()
    sys.exit(_closed(status))


def _status() -> int:
    try:
        status = cli(prog_name="envcheck", standalone_mode=False)
    except click.Abort as abort:
        return _say("interrupted", process.status_of(abort.__cause__))
    except PipeClosedError:
        return 128 + signal.SIGPIPE
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except Exception as error:  # noqa: BLE001 (the last handler: no traceback, and never 1, which says that a check failed)
        return _say(*line_and_code(error))
    return status if isinstance(status, int) else 0


def line_and_code(error: Exception) -> tuple[str, int]:
    """Return what is said of an error that ends a command, and its exit code."""
    if isinstance(error, EnvcheckError):
        return str(error), error.exit_code
    if isinstance(error, MemoryError):
        return "no memory is left; raise its limit (ulimit -v, a cgroup's), or end others", UnavailableError.exit_code
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        code = (UnavailableError if error.errno in FULL else ConfigError).exit_code
        return f"{where}{error.strerror or error}; check the path, its rights and the free space", code
    if not isinstance(error, click.ClickException):
        return _unexpected(error)
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "envcheck"
    message = " ".join(error.format_message().split()).rstrip(".")
    given: Any = getattr(error, "param", None)
    source = context.get_parameter_source(given.name) if context is not None and given is not None else None
    if context is not None and source is click.core.ParameterSource.ENVIRONMENT:
        word = max(given.opts, key=len).strip("-").replace("-", "_").upper()
        message += f" (from the variable {context.auto_envvar_prefix}_{word})"
    of_all = {option for parameter in cli.params for option in parameter.opts}
    if isinstance(error, click.NoSuchOption) and context is not None and error.option_name in of_all:
        return f"{message}; it belongs before the command: `envcheck {error.option_name} ...`", error.exit_code
    return f"{message}; see `{path} --help`", error.exit_code


def _unexpected(error: Exception) -> tuple[str, int]:
    """Return the line and exit code of an error that no command expects; its details go into a file."""
    if isinstance(error, ModuleNotFoundError) and error.name in _HOST_ONLY:
        return "inside an image envcheck only validates; run this command on the host", ConfigError.exit_code
    if isinstance(error, (ImportError, AttributeError)) and (hidden := _hidden_module()):
        return f"{hidden}; rename it or take its directory off PYTHONPATH", ConfigError.exit_code
    what = f"{type(error).__name__}: {error}".splitlines()[0]
    return f"internal error: {what}; {_written_details(error)}; report it with that file", UnavailableError.exit_code


def _hidden_module() -> str | None:
    """Return which file elsewhere hides a module of Python's library, as random.py in this directory."""
    import sysconfig  # here, as no other start needs it

    own = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")]
    for name in sorted(sys.stdlib_module_names & set(sys.modules)):
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and not any(Path(file).resolve().is_relative_to(directory) for directory in own):
            return f"{file} hides Python's own module {name}"
    return None


def _written_details(error: Exception) -> str:
    import tempfile  # here, as it imports modules that a file of the user may hide
    import traceback

    try:
        number, path = tempfile.mkstemp(prefix="envcheck-error-", suffix=".txt")
        with os.fdopen(number, "w", encoding="utf-8", errors="replace") as file:
            file.write(f"envcheck {__version__}, Python {sys.version}\n{' '.join(sys.argv)}\n")
            file.writelines(traceback.format_exception(error))
    except OSError:
        return "its details could not be written"
    return f"its details are in {path}"


def _closed(status: int) -> int:
    """Write what is still held back; where it cannot be written, the interpreter's end must not try again."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    if not process.lost:
        return status
    why = (process.lost[0].strerror or "").replace("No space left", "no space left")
    return _say(f"standard output: {why}; free space, or send it elsewhere", status or UnavailableError.exit_code)


def _say(line: str, status: int) -> int:
    process.say(line)
    return status
