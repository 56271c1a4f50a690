"""`envcheck fleet group`: a run whose ranks are on several nodes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from envcheck.cli.report_output import files as report_output_files
from envcheck.cli.report_output import node_files
from envcheck.cli.report_output.node_files import Node, Output, OutputType
from envcheck.cli.shared.parameter_types import Duration, FiniteRange
from envcheck.cli.shared.typed_options import takes

if TYPE_CHECKING:
    from envcheck.cli.fleet.group_run import GroupFiles
    from envcheck.fleet.group.membership import Membership
    from envcheck.runner.state import Run

_GROUP = "group"


class FleetGroupOptions(NamedTuple):
    """The options of `envcheck fleet group`."""

    python: str | None
    only: tuple[str, ...]
    require_gpu: bool
    nproc: int
    timeout: float | None
    wait: float
    master_addr: str | None
    master_port: int | None
    run_id: str | None
    output: Output | None
    as_json: bool
    dry_run: bool


@click.command("group", short_help="Measure what lies between nodes, with ranks on all of them.")
@click.option("--python", metavar="PATH", help="The interpreter, or environment, of the ranks.")
@click.option("--only", multiple=True, metavar="ID", help="Run this check alone. Repeatable.")
@click.option("--require-gpu", is_flag=True, help="Fail where there is no GPU.")
@click.option(
    "--nproc", type=click.IntRange(1, 1024), default=1, show_default=True, help="Ranks of a node without a GPU."
)
@click.option(
    "--timeout", type=FiniteRange(0.1), help="End each check after this many seconds, instead of its own limit."
)
@click.option("--wait", type=Duration(), default="3m", show_default=True, help="How long nodes wait for the others.")
@click.option("--master-addr", metavar="HOST", help="The first node. [MASTER_ADDR, or the first of Slurm's step]")
@click.option(
    "--master-port", type=click.IntRange(1, 65535), help="Its port. [MASTER_PORT, or drawn from Slurm's step]"
)
@click.option("--run-id", metavar="TEXT", help="What tells this group from others. [Slurm's step, torchrun's run]")
@click.option(
    "-o", "--output", type=OutputType(), help=f"The report; in DIR/ one a node. [{report_output_files.DEFAULT}]"
)
@click.option("--json", "as_json", is_flag=True, help="Print the group's report as JSON, on the first node.")
@click.option("--dry-run", is_flag=True, help="Print what the environment says of this node, and stop.")
@click.pass_context
@takes(FleetGroupOptions)
def command(options: FleetGroupOptions, ctx: click.Context) -> None:
    """Measure what lies between nodes: collectives, links and slow ranks.

    \b
    srun --ntasks-per-node=1 envcheck fleet group --output reports/
    torchrun --nnodes=4 --nproc-per-node=1 ... --no-python envcheck fleet group

    Start it once a node, by srun, torchrun, mpirun or an indexed Job. Each node
    writes a report, and the first one that of the group, group.json.
    Exit, on each node: 0: the group passed; 1: a check failed; 2: wrong usage,
    or nodes that differ; 3: undetermined, also for a group that did not form.
    """
    from envcheck.cli.fleet.group_run import GroupRun
    from envcheck.fleet.group.membership import membership
    from envcheck.runner.launcher import place

    report_output_files.require_working_directory()
    member = membership(os.environ, options.master_addr, options.master_port, options.run_id)
    why = node_files.left_to_the_first(place(os.environ), os.environ)
    if why is not None:
        click.echo(f"envcheck: {why}", err=True)
        return
    name = member.name or node_files.node_of(place(os.environ), nameless=False).name
    run = _run(options)
    files = _files(options, Node(name, several=True), first=member.node == 0)
    if options.dry_run:
        click.echo(_described(member, name))
        return
    processes = max(options.nproc, member.processes)
    group = GroupRun(run, member, name, files, processes, options.wait, options.as_json, ctx.obj.quiet)
    with node_files.alone(files.report):
        code = group.carried_out()
    ctx.exit(code)


def _described(member: Membership, name: str) -> str:
    run = f", run {member.run}" if member.run else ""
    number = f"{name} is number {member.node} of {member.nodes} nodes{run}"
    return f"{number}; they meet at {member.address} port {member.port}"


def _files(options: FleetGroupOptions, node: Node, *, first: bool) -> GroupFiles:
    from envcheck.cli.fleet.group_run import GroupFiles

    default = report_output_files.DEFAULT
    report = report_output_files.destination(options.output, default, node, dry=options.dry_run)
    group = report_output_files.destination(options.output, default, Node(_GROUP, several=True), dry=options.dry_run)
    return GroupFiles(report, group if first else None)


def _run(options: FleetGroupOptions) -> Run:
    from envcheck.fleet.group.session import chosen
    from envcheck.runner.container import shown_gpus
    from envcheck.runner.local_python import LocalPython, answering, choose_python
    from envcheck.runner.planning import plan
    from envcheck.runner.state import Run

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
    return Run(plan=planned, chosen=checks, target=target)
