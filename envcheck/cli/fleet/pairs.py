"""`envcheck fleet pairs`: which node, link or GPU is at fault."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import click

from envcheck.cli import Settings
from envcheck.cli.options import FILE, Duration, Option, command_with
from envcheck.cli.shared.process import note
from envcheck.counting import counted
from envcheck.errors import ConfigError
from envcheck.fleet.hostlist import unfold
from envcheck.fleet.pairs import session
from envcheck.fleet.pairs.diagnosis import SMALL
from envcheck.fleet.pairs.launch import SLURM, Launcher, checked, run_tests
from envcheck.fleet.pairs.results import ROLL_CALL, Diagnosis, GroupResult, GroupTest, name_of
from envcheck.fleet.pairs.session import Fleet, NextRound, document, lines, step
from envcheck.fleet.terminal import wrapped
from envcheck.safe_files import held


@dataclass(frozen=True, kw_only=True)
class FleetPairsOptions:
    nodes: Annotated[str, Option("The nodes as a Slurm host list: n[1-64].", metavar="LIST")]
    mode: Annotated[Literal["tournament", "diagnose"] | None, Option("Default: tournament up to 16 nodes.")] = None
    launch: Annotated[
        str | None, Option("Starts {command} on {nodes}, {count} in number. Default: srun.", metavar="COMMAND")
    ] = None
    timeout: Annotated[float, Option("Time for one test.", type=Duration())] = 600.0
    state: Annotated[
        Path, Option("Results so far, on a file system that all nodes share; reports go beside it.", type=FILE)
    ] = Path("envcheck-fleet-pairs.json")
    dry_run: Annotated[bool, Option("Print the plan and the first command, and stop.")] = False
    as_json: Annotated[bool, Option("--json", "Print envcheck/fleet-pairs/1.")] = False


@command_with(FleetPairsOptions, name="pairs")
def command(options: FleetPairsOptions, settings: Settings) -> int:  # noqa: ARG001 (all commands take them)
    """Find the node, link or GPU at fault by tests of groups, with the tests that say so.

    \b
    envcheck fleet pairs --nodes 'n[1-64]' --dry-run

    To continue a killed run, give the same command again.
    Exit 0: every node passed in a group; 1: a fault; 2: wrong usage; 3: undetermined: a group never formed.
    """
    if options.dry_run and options.as_json:
        message = "--dry-run prints a plan in words, and --json a diagnosis"
        raise ConfigError(message, fix="leave out one of them")
    if not options.state.parent.is_dir():
        message = f"--state {options.state}: there is no directory {options.state.parent}"
        raise ConfigError(message, fix="create it on a file system that all nodes share")
    fleet = _fleet(options)
    launcher = _launcher(options)
    state = session.begin(options.state, fleet, launcher.template)
    for text in session.plan_lines(fleet, state.results.values()):
        for line in wrapped(text, ""):
            click.echo(line, err=options.as_json)
    if options.dry_run:
        _show_commands(fleet, launcher)
        return 0
    _can_start(launcher)
    if state.results:
        click.echo(f"going on with {options.state}: {len(state.results)} results", err=True)
    lock = options.state.with_name(f".{options.state.name}.lock")
    with held(lock, lambda: _busy(options.state)):
        diagnosis = run_tests(fleet, state, options.state, launcher.run, _progress)
    _print(diagnosis, fleet, options, len(state.results))
    return diagnosis.exit_code


def _fleet(options: FleetPairsOptions) -> Fleet:
    nodes = tuple(unfold(options.nodes))
    if len(nodes) < 2:  # noqa: PLR2004 (a group)
        message = f"--nodes {options.nodes[:60]!r} names {counted(len(nodes), 'node')}"
        raise ConfigError(message, fix="name two nodes or more; one node alone is `envcheck run`")
    usual: Literal["tournament", "diagnose"] = "diagnose" if len(nodes) > SMALL else "tournament"
    return Fleet(nodes, options.mode or usual)


def _launcher(options: FleetPairsOptions) -> Launcher:
    folder = options.state.absolute().with_name(f"{options.state.stem}-reports")
    return Launcher(checked(options.launch or SLURM), folder, options.timeout)


def _can_start(launcher: Launcher) -> None:
    first = shlex.split(launcher.template)[0]
    if first != "{command}" and shutil.which(first) is None:
        message = f"{first} is not on PATH, so that no test can start"
        raise ConfigError(message, fix="run this where Slurm's srun is, or give --launch a command of your own")


def _busy(state: Path) -> None:
    message = f"another run is using {state}"
    raise ConfigError(message, fix="wait for it, or give --state another file")


def _show_commands(fleet: Fleet, launcher: Launcher) -> None:
    first = step(fleet, {})
    if isinstance(first, NextRound):
        click.echo(f"first: {shlex.join(launcher.command(first.tests[0], launcher.folder))}")
    pair = GroupTest("group", fleet.nodes[:2])
    click.echo(f"then such as: {shlex.join(launcher.command(pair, launcher.folder))}")


def _progress(number: int, test: GroupTest, result: GroupResult) -> None:
    attempt = ", again" if test.attempt > 1 else ""
    if test.step == ROLL_CALL:
        summary = f"{sum(answer.status == 'pass' for answer in result.answers)} of {len(test.nodes)} nodes pass"
    else:
        speed = f", {result.speed:.1f} GB/s" if result.speed is not None else ""
        summary = f"{result.status}{speed}" + (f": {result.reason}" if result.reason else "")
    note(f"round {number}, {test.step}{attempt} {name_of(test.nodes)}: {summary}")


def _print(diagnosis: Diagnosis, fleet: Fleet, options: FleetPairsOptions, tests: int) -> None:
    if options.as_json:
        click.echo(document(diagnosis, fleet, tests), nl=False)
        return
    for line in lines(diagnosis):
        click.echo(line)
