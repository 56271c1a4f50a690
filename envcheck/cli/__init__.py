"""The command line: one file a command, imported only when that command runs."""

from __future__ import annotations

import importlib
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
    r"""PyTorch/CUDA environments that are proven, not hoped for.

    \b
    envcheck resolve --gpu H100 --driver 550.54.14
    envcheck build torch2.13.0-cpu-py311 --mirror host
    envcheck run --image REF
    """
    ctx.obj = Settings(matrix=matrix, verbose=verbose, quiet=quiet)


def main() -> None:
    """Run the command line; every error a user can cause is one line and its exit code."""
    try:
        cli(prog_name="envcheck")
    except EnvcheckError as error:
        click.echo(f"envcheck: {error}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        click.echo(
            f"envcheck: {where}{error.strerror or error}; check the path, its rights and the free space", err=True
        )
        sys.exit(ConfigError.exit_code)
