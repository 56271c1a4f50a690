"""`envcheck fleet pairs`: which node, link or GPU is at fault."""

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
from envcheck.fleet.pairs.diagnosis import SMALL
from envcheck.fleet.pairs.launch import SLURM, Fleet, Launcher, begin, checked, run_tests
from envcheck.fleet.pairs.results import ROLL_CALL, GroupResult, GroupTest, document, lines, name_of
from envcheck.safe_files import held


@dataclass(frozen=True, kw_only=True)
class FleetPairsOptions:
    nodes: Annotated[str, Option("The nodes as a Slurm host list: n[1-64].", metavar="LIST")]
    mode: Annotated[Literal["tournament", "diagnose"] | None, Option("Default: tournament up to 16 nodes.")] = None
    launch: Annotated[str, Option("Starts {command} on {nodes}, {count} in number.", metavar="COMMAND")] = SLURM
    timeout: Annotated[float, Option("Time for one test.", type=Duration())] = 600.0
    state: Annotated[
        Path, Option("Results so far, on a file system that all nodes share; reports go beside it.", type=FILE)
    ] = Path("envcheck-fleet-pairs.json")
    dry_run: Annotated[bool, Option("Print the first commands, and stop.")] = False
    as_json: Annotated[bool, Option("--json", "Print envcheck/fleet-pairs/1.")] = False


@command_with(FleetPairsOptions, name="pairs")
def command(options: FleetPairsOptions, settings: Settings) -> int:  # noqa: ARG001 (all commands take them)
    """Find the node, link or GPU at fault by tests of groups, with the tests that say so.

    \b
    envcheck fleet pairs --nodes 'n[1-64]' --dry-run

    To continue a killed run, give the same command again.
    Exit 0: every node passed in a group; 1: a fault; 2: wrong usage; 3: undetermined: a group never formed.
    """
    if not options.state.parent.is_dir():
        message = f"--state {options.state}: there is no directory {options.state.parent}"
        raise ConfigError(message, fix="create it on a file system that all nodes share")
    fleet = _fleet(options)
    folder = options.state.absolute().with_name(f"{options.state.stem}-reports")
    launcher = Launcher(checked(options.launch), folder, options.timeout)
    if options.dry_run:
        for nodes, step in ((fleet.nodes, ROLL_CALL), (fleet.nodes[:2], "group")):
            click.echo(shlex.join(launcher.command(GroupTest(step, nodes), folder)))
        return 0
    first = shlex.split(launcher.template)[0]
    if first != "{command}" and shutil.which(first) is None:
        message = f"{first} is not on PATH, so that no test can start"
        raise ConfigError(message, fix="run this where Slurm's srun is, or give --launch a command of your own")
    with held(options.state.with_name(f".{options.state.name}.lock"), lambda: _busy(options.state)):
        state = begin(options.state, fleet, launcher.template)
        diagnosis = run_tests(fleet, state, options.state, launcher.run, _progress)
    if options.as_json:
        click.echo(document(diagnosis, fleet.mode, fleet.nodes, len(state.results)), nl=False)
    else:
        click.echo("\n".join(lines(diagnosis)))
    return diagnosis.exit_code


def _fleet(options: FleetPairsOptions) -> Fleet:
    nodes = tuple(unfold(options.nodes))
    if len(nodes) < 2:  # noqa: PLR2004 (a group)
        message = f"--nodes {options.nodes[:60]!r} names {counted(len(nodes), 'node')}"
        raise ConfigError(message, fix="name two nodes or more; one node alone is `envcheck run`")
    usual: Literal["tournament", "diagnose"] = "diagnose" if len(nodes) > SMALL else "tournament"
    return Fleet(nodes, options.mode or usual)


def _busy(state: Path) -> None:
    message = f"another run is using {state}"
    raise ConfigError(message, fix="wait for it, or give --state another file")


def _progress(number: int, test: GroupTest, result: GroupResult) -> None:
    attempt = ", again" if test.attempt > 1 else ""
    if test.step == ROLL_CALL:
        summary = f"{sum(answer.status == 'pass' for answer in result.answers)} of {len(test.nodes)} nodes pass"
    else:
        speed = f", {result.speed:.1f} GB/s" if result.speed is not None else ""
        summary = f"{result.status}{speed}" + (f": {result.reason}" if result.reason else "")
    note(f"round {number}, {test.step}{attempt} {name_of(test.nodes)}: {summary}")
