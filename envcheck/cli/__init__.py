"""The command line: one file a command, imported only when that command runs."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from envcheck import __version__
from envcheck.cli.options import ListedText, OptionsCommand
from envcheck.cli.shared import messages, streams
from envcheck.cli.shared.interruptible import end_process, leave, status_of
from envcheck.cli.shared.strict_options import make_strict, variable
from envcheck.errors import ConfigError, EnvcheckError, UnavailableError
from envcheck.mirrors.net.waits import NETWORK_WAITS

COMMANDS: Final = {
    "resolve": "Say what can run on this machine, or on one that you describe.",
    "matrix": "Show, lint and refresh the facts.",
    "images": "List the published cells; audit and measure images.",
    "lock": "Pin a cell's packages with hashes.",
    "render": "Write a cell's Dockerfile, or a whole build context.",
    "mirror": "Choose, measure, configure and run mirrors.",
    "fetch": "Fetch files and verify them against known hashes.",
    "store": "Keep files by hash, release them, carry them to machines without a network.",
    "build": "Build a cell's image or environment and prove it is what its tag says.",
    "run": "Validate an environment: this one, another Python's, or an image's.",
    "checks": "List what each check promises, needs and costs.",
    "judge": "Apply today's rules to an old report.",
    "key": "Make the keys that sign proofs and bundles.",
    "publish": "Put the proof of a run beside the image that ran.",
    "proof": "List the proofs of an image, and which of them hold here.",
    "pull": "Pull the newest image that is proven for this node.",
    "promote": "Move an alias to an image whose proofs meet a policy.",
    "watch": "Run a command, and report what its GPUs and processes did.",
    "fleet": "Judge many nodes: which failed, which to use now, what runs on all.",
    "report": "Convert, compare and redact reports.",
    "demo": "Resolve, build and validate for this machine.",
}


# What the envcheck of an image comes without (pyproject.toml, the group `image`).
_HOST_ONLY: Final = {"cryptography", "docker", "jinja2", "uv"}
# Commands with commands of their own, each in a package, and those of a room of theirs.
_GROUPS: Final = {"fleet", "images", "key", "matrix", "mirror", "store"}
_REGISTRY: Final = {"publish", "proof", "pull", "promote"}


class Settings(NamedTuple):
    """The global options, found at `ctx.obj`."""

    matrix: Path | None
    verbose: bool
    quiet: bool


class PipeClosedError(Exception):
    """Whoever read our output has gone."""


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 (click's signature)
        if cmd_name not in COMMANDS:
            return None
        room = "registry" if cmd_name in _REGISTRY else "commands"
        home = f"{cmd_name}.group" if cmd_name in _GROUPS else f"{room}.{cmd_name}"
        command = importlib.import_module(f"envcheck.cli.{home}").command
        if not isinstance(command, click.Command):
            message = f"envcheck.cli.{home} has no click command called `command`"
            raise TypeError(message)
        prepare(command, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS:
            import difflib

            for near in difflib.get_close_matches(args[0], COMMANDS, 1):
                ctx.fail(f"No such command {args[0]!r} (did you mean {near!r}?)")
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


def prepare(command: click.Command, path: str) -> None:
    """Hold a command to the rules of all, and name its variables: --gpu of "resolve" is ENVCHECK_RESOLVE_GPU.

    An argument that takes cells has a variable too, ENVCHECK_BUILD_CELL.
    """
    if isinstance(command, OptionsCommand):
        return
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            parameter.envvar = variable(path, max(parameter.opts, key=len))
        elif "CELL" in (parameter.metavar or ""):
            parameter.envvar = variable(path, "--cell")
        if (parameter.multiple or parameter.nargs == -1) and isinstance(parameter.type, click.types.StringParamType):
            parameter.type = ListedText()
    make_strict(command, path)
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            prepare(child, f"{path} {name}")


@click.group(
    cls=_LazyGroup,
    context_settings={"auto_envvar_prefix": "ENVCHECK", "help_option_names": ["-h", "--help"], "max_content_width": 80},
)
@click.version_option(__version__, prog_name="envcheck")
@click.option("--matrix", type=click.Path(path_type=Path), help="Facts and choices to use instead of the shipped ones.")
@click.option("--verbose", is_flag=True, help="Show more: the whole output of a build.")
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
        ctx.with_resource(NETWORK_WAITS.announced(messages.note))


def program() -> None:
    """Run the command line as the whole of a process."""
    try:
        main()
    except SystemExit as ended:
        if isinstance(ended.code, int):
            end_process(ended.code)
        raise


def main() -> None:
    """Run the command line; every error a user can cause is one line and its exit code."""
    streams.ready()
    # Modules and options make objects by the ten thousand, and next to no garbage: collecting takes 12 % of a start.
    gc.set_threshold(100_000, 20, 100)
    try:
        status = _status()
    except SystemExit as ended:
        if not isinstance(ended.code, int):
            raise
        status = ended.code
    sys.exit(leave(_closed(status)))


def _status() -> int:
    try:
        status = cli(prog_name="envcheck", standalone_mode=False)
    except click.Abort as abort:
        cause = abort.__cause__
        return _say("interrupted", status_of(cause if isinstance(cause, KeyboardInterrupt) else KeyboardInterrupt()))
    except PipeClosedError:
        return 128 + signal.SIGPIPE
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except (click.ClickException, EnvcheckError, OSError) as error:
        return _say(*_message_and_code(error))
    except (ImportError, AttributeError) as error:
        return _say(_installation_problem(error), ConfigError.exit_code)
    return status if isinstance(status, int) else 0


def _installation_problem(error: ImportError | AttributeError) -> str:
    """Return why this installation cannot run the command. Raises the error itself where that is not known."""
    if isinstance(error, ModuleNotFoundError) and error.name in _HOST_ONLY:
        return "inside an image envcheck only validates; run this command on the host"
    hidden = messages.hidden_module()
    if hidden is None:
        raise error
    return f"{hidden[1]} hides Python's own module {hidden[0]}; rename it or take its directory off PYTHONPATH"


def _closed(status: int) -> int:
    """Write what is still held back; where it cannot be written, the interpreter's end must not try again."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    unwritten = streams.unwritten()
    return status if unwritten is None else _say(_no_output(unwritten), status or UnavailableError.exit_code)


def _no_output(error: OSError) -> str:
    why = (error.strerror or "").replace("No space left", "no space left")
    return f"standard output: {why}; free space, or send it elsewhere"


def _say(line: str, status: int) -> int:
    messages.say(line)
    return status


def _message_and_code(error: click.ClickException | EnvcheckError | OSError) -> tuple[str, int]:
    """Return the line a user reads, and the exit code."""
    if isinstance(error, EnvcheckError):
        return str(error), error.exit_code
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        summary = f"{where}{error.strerror or error}; check the path, its rights and the free space"
        return summary, ConfigError.exit_code
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "envcheck"
    message = " ".join(error.format_message().split()).rstrip(".")
    return f"{message}; see `{path} --help`", error.exit_code
