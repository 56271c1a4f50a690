"""`envcheck fleet group`: a run whose ranks are on several nodes, of which this process runs those of one."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import click

from envcheck.cli import Settings, report_output
from envcheck.cli.options import Duration, FiniteRange, Option, command_with
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
    timeout: Annotated[
        float | None, Option("End each check after this many seconds, instead of its own limit.", type=FiniteRange(0.1))
    ] = None
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
    group = GroupRun(_run(options), member, name, options, quiet=settings.quiet)
    if options.dry_run:
        click.echo(f"{name} is {member.described}")
        return 0
    with report_output.alone(group.report):
        return group.carried_out()


def _run(options: FleetGroupOptions) -> Run:
    checks = chosen(options.only)
    planned = plan(
        checks,
        level="standard",
        nproc=options.nproc,
        gpus=shown_gpus(),
        timeout=options.timeout,
        require_gpu=options.require_gpu,
    )
    target = LocalPython(answering(choose_python(Path(options.python) if options.python else None)))
    return Run(RunPlan(plan=planned, chosen=checks, target=target))


class GroupRun:
    """A node's part of a group: where its report goes, and on the first node the group's."""

    def __init__(self, run: Run, member: Membership, name: str, options: FleetGroupOptions, *, quiet: bool) -> None:
        self._run, self._member, self._name, self._options, self._quiet = run, member, name, options, quiet
        self.report = self._destination(name)
        group = self._destination("group")
        self._group_report = None if member.node else group

    def _destination(self, name: str) -> Path | None:
        options, node = self._options, Node(name, several=True)
        return report_output.destination(options.output, report_output.DEFAULT, node, dry=options.dry_run)

    def carried_out(self) -> int:
        """Meet the other nodes, measure, write the reports, print what came of it, and return the exit code."""
        interrupted: KeyboardInterrupt | None = None
        processes = max(self._options.nproc, self._member.processes)
        self._run.begin()
        try:
            with met(self._run, self._member, self._name, processes, self._options.wait) as formed:
                if formed:
                    with terminal.Progress(self._run.asked.plan) as progress:
                        validate(self._run, collect, LiveReport(self._run, self.report, progress, self._own))
        except KeyboardInterrupt as how:
            interrupted = how
        failed = self._written()
        self._print()
        code = report_of(self._run).verdict.exit_code
        return status_of(interrupted) if interrupted is not None else code or 3 if failed else code

    def _own(self, report: RunReport) -> RunReport:
        return of_node(report, self._member.node)

    def _written(self) -> bool:
        """Write the reports; return whether one could not be written, and say why."""
        report, failed = report_of(self._run), False
        group = self._group_report if self._run.nodes else None
        for path, content in ((self.report, self._own(report)), (group, of_group(report))):
            if path is None:
                continue
            try:
                write(content, path)
            except OSError as error:
                failed = True
                click.echo(f"envcheck: {path}: {error.strerror}; free space, or give --output another place", err=True)
        return failed

    def _print(self) -> None:
        report = of_group(report_of(self._run))
        if self._member.node:
            unformed = self._run.nodes is None and FORMED in self._run.known
            why = f": {self._run.known[FORMED].summary}" if unformed else ""
            click.echo(f"{self._name}: {self._own(report).verdict.sentence}{why}")
        elif self._quiet:
            click.echo(report.verdict.sentence)
        else:
            files = (self.report, self._group_report if self._run.nodes else None)
            written = [f"report: {path}" for path in files if path is not None]
            terminal.show(report, new_console(width=terminal.width(), highlight=False), written)
        sys.stdout.flush()
