"""The command line: one file a command, imported only when that command runs."""

from __future__ import annotations

import difflib
import importlib
import os
import signal
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from envcheck import __version__
from envcheck.cli import _streams
from envcheck.cli._strict import refuse_empty
from envcheck.errors import ConfigError, EnvcheckError

COMMANDS: Final = {
    "resolve": "What can run on this machine, or on the one you describe.",
    "matrix": "Show and lint the facts.",
    "images": "List the cells of images/ and what each still lacks.",
    "lock": "Pin a cell's packages with hashes.",
    "render": "Write a cell's Dockerfile, or a whole build context.",
    "mirror": "Where bytes come from: profiles, settings, what is wrong with them.",
    "fetch": "Fetch files of known hashes, whole or not at all.",
    "store": "Keep files by their hash, publish them, carry them to where no network goes.",
    "build": "Build a cell's image or environment and prove it is what its tag says.",
    "run": "Validate an environment: this one, another Python's, or an image's.",
    "checks": "What each check promises, needs and costs.",
    "judge": "Judge a report's evidence again, by today's rules.",
    "report": "A report in other forms, or compared with another.",
    "demo": "Resolve for this machine, build, validate.",
}


# What the envcheck of an image comes without (pyproject.toml, the group `image`).
_HOST_ONLY: Final = {"docker", "jinja2", "uv"}


class Settings(NamedTuple):
    """The global options, found at `ctx.obj`."""

    matrix: Path | None
    verbose: bool
    quiet: bool


class PipeClosedError(Exception):
    """Whoever read our output has gone."""


class _Listed(click.types.StringParamType):
    """Text of a repeatable option; in an environment variable its values stand between commas, as GPUs have spaces."""

    envvar_list_splitter = ","


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 (click's signature)
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"envcheck.cli.{cmd_name}").command
        if not isinstance(command, click.Command):
            message = f"envcheck.cli.{cmd_name}.command is no click command"
            raise TypeError(message)
        name_variables(command, f"ENVCHECK_{cmd_name.upper()}")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        near = difflib.get_close_matches(args[0], COMMANDS, 1) if args and args[0] not in COMMANDS else []
        if near:
            ctx.fail(f"No such command {args[0]!r} (did you mean {near[0]!r}?)")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            # click would exit 1, which here says that something was found wrong.
            raise PipeClosedError from error


def name_variables(command: click.Command, prefix: str) -> None:
    """Give every option the variable that its name on the command line says: --gpu of resolve, ENVCHECK_RESOLVE_GPU."""
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            longest = max(parameter.opts, key=len)
            parameter.envvar = f"{prefix}_{longest.lstrip('-').replace('-', '_').upper()}"
            if parameter.multiple and isinstance(parameter.type, click.types.StringParamType):
                parameter.type = _Listed()
    refuse_empty(command)
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            name_variables(child, f"{prefix}_{name.upper()}")


@click.group(
    cls=_LazyGroup,
    context_settings={"auto_envvar_prefix": "ENVCHECK", "help_option_names": ["-h", "--help"], "max_content_width": 80},
)
@click.version_option(__version__, prog_name="envcheck")
@click.option("--matrix", type=click.Path(path_type=Path), help="Facts and choices to use instead of the shipped ones.")
@click.option("--verbose", is_flag=True, help="Say more: the whole output of a build.")
@click.option("--quiet", is_flag=True, help="Say only the result.")
@click.pass_context
def cli(ctx: click.Context, *, matrix: Path | None, verbose: bool, quiet: bool) -> None:
    """PyTorch/CUDA environments that are proven, not hoped for.

    \b
    envcheck resolve --gpu H100 --driver 550.54.14
    envcheck build torch2.13.0-cpu-py311 --mirror host
    envcheck run --image REF
    """
    ctx.obj = Settings(matrix=matrix, verbose=verbose, quiet=quiet)


def main() -> None:
    """Run the command line; every error a user can cause is one line and its exit code."""
    _streams.ready()
    sys.exit(_closed(_status()))


def _status() -> int:
    try:
        status = cli(prog_name="envcheck", standalone_mode=False)
    except click.Abort:
        return _say("interrupted", 128 + signal.SIGINT)
    except PipeClosedError:
        return 128 + signal.SIGPIPE
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except ModuleNotFoundError as error:
        if error.name not in _HOST_ONLY:
            raise
        return _say("inside an image envcheck only validates; run this command on the host", ConfigError.exit_code)
    except (click.ClickException, EnvcheckError, OSError) as error:
        return _say(*_told(error))
    return status if isinstance(status, int) else 0


def _closed(status: int) -> int:
    """Write what is still held back; where it cannot be written, the interpreter's end must not try again."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 128 + signal.SIGPIPE
        return status or _say(f"standard output: {error.strerror}; give it room", ConfigError.exit_code)
    return status


def _say(line: str, status: int) -> int:
    click.echo(f"envcheck: {line}", err=True)
    return status


def _told(error: click.ClickException | EnvcheckError | OSError) -> tuple[str, int]:
    """Return the line a user reads, and the exit code."""
    if isinstance(error, EnvcheckError):
        return str(error), error.exit_code
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        what = f"{where}{error.strerror or error}; check the path, its rights and the free space"
        return what, ConfigError.exit_code
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "envcheck"
    message = " ".join(error.format_message().split()).rstrip(".")
    return f"{message}; see `{path} --help`", error.exit_code
