"""`envcheck checks`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import click

from envcheck.checks import LEVELS
from envcheck.cli import Settings
from envcheck.cli.options import EXISTING_DIRECTORY, Argument, Option, command_with, complete_checks
from envcheck.cli.shared.process import say
from envcheck.errors import ConfigError
from envcheck.reports import check_catalogue
from envcheck.runner.planning import discover, select


@dataclass(frozen=True, kw_only=True)
class ChecksOptions:
    check: Annotated[str | None, Argument(metavar="[ID]", shell_complete=complete_checks)] = None
    level: Annotated[
        str | None, Option("Only what this level runs, the levels before it included.", type=click.Choice(LEVELS))
    ] = None
    checks: Annotated[
        Path | None, Option("Directory with your own checks (node/*.py, env/*.py).", type=EXISTING_DIRECTORY)
    ] = None
    format_name: Annotated[
        Literal["text", "markdown"], Option("--format", "markdown: the table of docs/checks.md.")
    ] = "text"
    as_json: Annotated[bool, Option("--json", "Print as JSON, limits and all.")] = False


@command_with(ChecksOptions, short_help="What each check promises, needs and costs.")
def command(options: ChecksOptions, _settings: Settings) -> int:
    """List every check, or describe one: promise, needs, cost, limits.

    A file of --checks that is not a check is named on standard error, and the others are listed.

    \b
    envcheck checks
    envcheck checks --level quick
    envcheck checks gemm-throughput

    Exit 0: listed; 2: a file of --checks is not a check, or wrong usage.
    """
    if options.check is not None and options.level is not None:
        message = f"--level lists the checks of a level, and {options.check} is one check"
        raise ConfigError(message, fix="leave one of them out")
    check, errors = options.check, list[ConfigError]()

    def hear(error: ConfigError) -> None:
        say(str(error))
        errors.append(error)

    modules = select(discover(options.checks, hear), options.level or LEVELS[-1], only=[check] if check else [])
    if options.as_json:
        click.echo(json.dumps([check_catalogue.facts(f) for f in modules], indent=2))
    elif options.format_name == "markdown":
        click.echo(check_catalogue.markdown(modules), nl=False)
    else:
        lines = check_catalogue.table(modules) if check is None else check_catalogue.described(modules[0])
        click.echo("\n".join(lines))
    return ConfigError.exit_code if errors else 0
