"""The command line: one file a command, imported only when that command runs."""

from __future__ import annotations

import difflib
import importlib
import signal
import sys
from pathlib import Path
from typing import Final, NamedTuple

import click

from envcheck import __version__
from envcheck.errors import ConfigError, EnvcheckError

COMMANDS: Final = {
    "resolve": "What can run on this machine, or on the one you describe.",
    "matrix": "Show and lint the facts.",
    "images": "List the cells of images/ and what each still lacks.",
    "lock": "Pin a cell's packages with hashes.",
    "render": "Write a cell's Dockerfile, or a whole build context.",
    "build": "Build a cell's image or environment and prove it is what its tag says.",
    "run": "Validate an environment: this one, another Python's, or an image's.",
    "checks": "What each check promises, needs and costs.",
    "report": "Show a report again; its JSON Schema.",
    "demo": "Resolve for this machine, build, validate.",
}


class Settings(NamedTuple):
    """The global options, found at `ctx.obj`."""

    matrix: Path | None
    verbose: bool
    quiet: bool


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


@click.group(
    cls=_LazyGroup,
    context_settings={"auto_envvar_prefix": "ENVCHECK", "help_option_names": ["-h", "--help"], "max_content_width": 80},
)
@click.version_option(__version__, prog_name="envcheck")
@click.option("--matrix", type=click.Path(path_type=Path), help="Facts and choices to use instead of the shipped ones.")
@click.option("--verbose", is_flag=True, help="Say more.")
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
    try:
        status = cli(prog_name="envcheck", standalone_mode=False)
    except click.Abort:
        click.echo("envcheck: interrupted", err=True)
        sys.exit(128 + signal.SIGINT)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        sys.exit(_say(_usage(error), error.exit_code))
    except EnvcheckError as error:
        sys.exit(_say(str(error), error.exit_code))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        what = f"{where}{error.strerror or error}; check the path, its rights and the free space"
        sys.exit(_say(what, ConfigError.exit_code))
    sys.exit(status if isinstance(status, int) else 0)


def _say(line: str, status: int) -> int:
    click.echo(f"envcheck: {line}", err=True)
    return status


def _usage(error: click.ClickException) -> str:
    """Return click's own message on one line, and whose help to read."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "envcheck"
    message = " ".join(error.format_message().split()).rstrip(".")
    return f"{message}; see `{path} --help`"
