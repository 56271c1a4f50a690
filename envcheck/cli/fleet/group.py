"""`envcheck fleet group`: a run whose ranks are on several nodes, of which this process runs those of one."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import click

from envcheck.cli import Settings, report_output
from envcheck.cli.options import Duration, Option, command_with
from envcheck.cli.report_output import Node, Output, OutputType
from envcheck.cli.shared.process import console as new_console
from envcheck.cli.shared.process import status_of
from envcheck.fleet.group.membership import Membership, membership
from envcheck.fleet.group.outcome import FORMED, of_group, of_node
from envcheck.fleet.group.session import chosen, met
from envcheck.node.collect import collect
from envcheck.reports import terminal
from envcheck.reports.model import RunReport, report_of, write
from envcheck.reports.terminal import LiveReport
from envcheck.runner.container import shown_gpus
from envcheck.runner.execute import validate
from envcheck.runner.launcher import place
from envcheck.runner.local_python import LocalPython, answering, choose_python
from envcheck.runner.planning import plan
from envcheck.runner.state import Run, RunPlan


@dataclass(frozen=True, kw_only=True)
class FleetGroupOptions:
    python: Annotated[str | None, Option("The interpreter, or environment, of the ranks.", metavar="PATH")] = None
    only: Annotated[tuple[str, ...], Option("Run this check alone. Repeatable.", metavar="ID")] = ()
    require_gpu: Annotated[bool, Option("Fail where there is no GPU.")] = False
    nproc: Annotated[int, Option("Ranks of a node without a GPU.", type=click.IntRange(1, 1024))] = 1
    wait: Annotated[float, Option("How long nodes wait for the others.", type=Duration())] = 180.0
    run_id: Annotated[
        str | None, Option("What tells this group from others. [Slurm's step, torchrun's run]", metavar="TEXT")
    ] = None
    output: Annotated[
        Output | None,
        Option("-o", "--output", f"The report; in DIR/ one a node. [{report_output.DEFAULT}]", type=OutputType()),
    ] = None
    dry_run: Annotated[bool, Option("Print what the environment says of this node, and stop.")] = False


@command_with(FleetGroupOptions, name="group", short_help="Measure what lies between nodes, with ranks on all of them.")
def command(options: FleetGroupOptions, settings: Settings) -> int:
    """Measure what lies between nodes: collectives, links and slow ranks.

    \b
    srun --ntasks-per-node=1 envcheck fleet group --output reports/
    torchrun --nnodes=4 --nproc-per-node=1 ... --no-python envcheck fleet group

    Start it once a node, by srun, torchrun, mpirun or an indexed Job. Each node
    writes a report, and the first one that of the group, group.json.
    Exit, on each node: 0: the group passed; 1: a check failed; 2: wrong usage,
    or nodes that differ; 3: undetermined, also for a group that did not form.
    """
    report_output.require_working_directory()
    member = membership(os.environ, options.run_id)
    why = report_output.left_to_the_first(place(os.environ), os.environ)
    if why is not None:
        click.echo(f"envcheck: {why}", err=True)
        return 0
    name = member.name or report_output.node_of(place(os.environ), nameless=False).name
    run = _run(options)
    own, whole = (
        report_output.destination(
            options.output, report_output.DEFAULT, Node(called, several=True), dry=options.dry_run
        )
        for called in (name, "group")
    )
    if options.dry_run:
        click.echo(f"{name} is {member.described}")
        return 0
    with report_output.alone(own):
        interrupted = _measured(run, member, name, options, own)
        report = of_group(report_of(run))
        mine = of_node(report_of(run), member.node)
        paths = {own: mine} | ({} if member.node or run.nodes is None else {whole: report})
        unwritten = [path for path, content in paths.items() if path is not None and not _written(path, content)]
        if member.node:
            unformed = run.nodes is None and FORMED in run.known
            click.echo(f"{name}: {mine.verdict.sentence}{f': {run.known[FORMED].summary}' if unformed else ''}")
        elif settings.quiet:
            click.echo(report.verdict.sentence)
        else:
            console = new_console(width=terminal.width(), highlight=False)
            terminal.show(report, console, [f"report: {path}" for path in paths if path is not None])
        sys.stdout.flush()
        code = report.verdict.exit_code
        return status_of(interrupted) if interrupted is not None else code or 3 if unwritten else code


def _run(options: FleetGroupOptions) -> Run:
    checks = chosen(options.only)
    gpus, wanted = shown_gpus(), options.require_gpu
    planned = plan(checks, level="standard", nproc=options.nproc, gpus=gpus, require_gpu=wanted)
    target = LocalPython(answering(choose_python(Path(options.python) if options.python else None)))
    return Run(RunPlan(plan=planned, chosen=checks, target=target))


def _measured(
    run: Run, member: Membership, name: str, options: FleetGroupOptions, own: Path | None
) -> KeyboardInterrupt | None:
    """Meet the other nodes and measure; return the interrupt that ended it."""
    run.begin()
    try:
        with met(run, member, name, max(options.nproc, member.processes), options.wait) as formed:
            if formed:
                with terminal.Progress(run.asked.plan) as progress:
                    live = LiveReport(run, own, progress, lambda report: of_node(report, member.node))
                    validate(run, collect, live)
    except KeyboardInterrupt as how:
        return how
    return None


def _written(path: Path, content: RunReport) -> bool:
    try:
        write(content, path)
    except OSError as error:
        click.echo(f"envcheck: {path}: {error.strerror}; free space, or give --output another place", err=True)
        return False
    return True
