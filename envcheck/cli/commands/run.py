"""`envcheck run`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from envcheck.checks import LEVELS
from envcheck.cli.report_output import baseline as report_output_baseline
from envcheck.cli.report_output import files as report_output_files
from envcheck.cli.report_output import node_files
from envcheck.cli.report_output.files import Destinations
from envcheck.cli.report_output.node_files import Output, OutputType
from envcheck.cli.report_output.run_and_report import run_and_report
from envcheck.cli.shared import completion, messages
from envcheck.cli.shared.parameter_types import Duration, FiniteRange
from envcheck.cli.shared.typed_options import takes
from envcheck.counting import counted
from envcheck.errors import ConfigError
from envcheck.runner.launcher import Place, complaints, place

if TYPE_CHECKING:
    from collections.abc import Callable

    from envcheck.reports.model import RunReport
    from envcheck.runner.local_python import Target
    from envcheck.runner.planning import CheckModule
    from envcheck.runner.requirements import Requirements
    from envcheck.runner.state import Run


class RunOptions(NamedTuple):
    """The options of `envcheck run`."""

    python: str | None
    image: str | None
    level: str
    only: tuple[str, ...]
    skip: tuple[str, ...]
    checks: Path | None
    require_gpu: bool
    requirements: str | None
    nproc: int
    timeout: float | None
    shm_size: str
    spawn: bool
    output: Output | None
    budget: float | None
    repeat: int
    duration: float | None
    resume: bool
    baseline: Path | None
    html: Output | None
    summary: Output | None
    redact: bool
    redact_key: str
    as_json: bool
    dry_run: bool


_HIDING: Final[dict[str, Any]] = {"is_eager": True, "callback": messages.hide_names}


@click.command(short_help="Validate an environment: this one, another Python's, or an image's.")
@click.option("--python", metavar="PATH", help="The interpreter, or environment, to validate (with --image: in it).")
@click.option("--image", metavar="REF", help="A local image to validate, ours or not.")
@click.option("--level", type=click.Choice(LEVELS), default="standard", show_default=True, help="How much to check.")
@click.option(
    "--only",
    multiple=True,
    shell_complete=completion.checks,
    metavar="ID",
    help="Run this check alone, whatever its level. Repeatable.",
)
@click.option(
    "--skip", multiple=True, shell_complete=completion.checks, metavar="ID", help="Leave this check out. Repeatable."
)
@click.option(
    "--checks",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Directory with your own checks (node/*.py, env/*.py).",
)
@click.option("--require-gpu", is_flag=True, help="Fail if there is no GPU, instead of skipping.")
@click.option(
    "--requirements", metavar="FILE", help="Fail if the node lacks what this TOML file (or: hgx-h100) requires."
)
@click.option("--nproc", type=click.IntRange(1), default=2, show_default=True, help="Ranks of a group on a CPU.")
@click.option("--timeout", type=FiniteRange(0.1), help="End each check after so many seconds, not after its own limit.")
@click.option("--shm-size", default="8g", show_default=True, help="Shared memory of the container (with --image).")
@click.option("--spawn", is_flag=True, help="Start every rank in a fresh Python instead of forking it.")
@click.option(
    "-o", "--output", type=OutputType(), help=f"The report; in DIR/ one per node. [{report_output_files.DEFAULT}]"
)
@click.option("--budget", type=Duration(), help="Time budget, e.g. 60s. Checks that do not fit are skipped and listed.")
@click.option(
    "--repeat",
    metavar="N",
    type=click.IntRange(1),
    default=1,
    help="Repeat all checks N times and report the worst result.",
)
@click.option(
    "--duration", type=Duration(), help="Repeat all checks for this time, e.g. 10m, and report the worst result."
)
@click.option("--resume", is_flag=True, help="Continue an unfinished run from its report.")
@click.option(
    "--baseline", type=click.Path(path_type=Path, dir_okay=False), help="Fail if slower or worse than this report."
)
@click.option("--html", type=OutputType(), help="Write the report as one page, too.")
@click.option("--summary", type=OutputType(), help="Append Markdown: $GITHUB_STEP_SUMMARY.")
@click.option(
    "--redact",
    is_flag=True,
    **_HIDING,
    help="Write no names: hosts, users, UUIDs, serials and paths get pseudonyms.",
)
@click.option(
    "--redact-key",
    default="",
    **_HIDING,
    metavar="TEXT",
    help="--redact with this key's pseudonyms; keep it secret.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--dry-run", is_flag=True, help="Print what would be run, and for how long.")
@click.pass_context
@takes(RunOptions)
def command(options: RunOptions, ctx: click.Context) -> None:
    """Validate an environment: this one, another Python's, or an image's.

    \b
    envcheck run                                 the active environment
    envcheck run --python /opt/venv              another one on this machine
    envcheck run --image REF --require-gpu       an image, on this node's GPUs
    envcheck run --budget 60s                    what fits into a minute
    envcheck run --level full --duration 10m     repeat for ten minutes
    envcheck run --baseline good.json            compare with an earlier run

    Under a launcher (srun, torchrun, mpirun, an indexed Job) one process of a
    node runs the checks, and the others exit 0. With several nodes each writes its own files:
    envcheck-report-<node>.json, DIR/<node>.json, and FILE gets -<node> before its suffix.

    Nothing is installed in the environment. Exit 0: all required checks passed;
    1: a check failed; 2: wrong usage; 3: something could not be checked. Checks
    that do not fit --budget are skipped, and the last line counts them. If no
    check fits, the exit code is 3.
    """
    from msgspec import structs

    from envcheck.cli.shared.streams import console as new_console
    from envcheck.reports import terminal

    report_output_files.require_working_directory()
    launched = leave_to_the_first(ctx)
    run = _prepare(ctx, options)
    # Beside --json, what people read goes where a pipe does not.
    quiet, to_stderr = ctx.obj.quiet, options.as_json
    console = new_console(width=terminal.width(), highlight=False, stderr=to_stderr, quiet=to_stderr and quiet)
    files = _destinations(options, launched)
    earlier = report_output_baseline.read(options.baseline)
    if earlier and (options.redact or options.redact_key):
        messages.learn(earlier)
    going_on = _resume(run, files.report or report_output_files.DEFAULT) if options.resume else None
    facts = run.target.facts
    facts = structs.replace(facts, name=files.redacted_line(facts.name), chosen=files.redacted_line(facts.chosen))
    if options.dry_run:
        terminal.show_plan(run.plan, facts, console, run.demands)
        if going_on:
            click.echo(going_on, err=to_stderr)
        return
    if not quiet:
        terminal.show_announcement(run.plan, facts, console)
    if going_on and not quiet:
        click.echo(going_on, err=to_stderr)
    with node_files.alone(files.report):
        code = run_and_report(run, files, console, earlier, as_json=to_stderr, quiet=quiet)
    _keep_for_the_gate(run, options, files)
    ctx.exit(code)


def _keep_for_the_gate(run: Run, options: RunOptions, files: Destinations) -> None:
    """Keep the verdict for `envcheck fleet gate`, unless checks were left out or names are not to be written."""
    from envcheck.fleet.gate import keep_run
    from envcheck.reports.model import report_of

    partly = options.only or options.skip or options.budget is not None or options.timeout is not None
    if not (partly or options.redact or options.redact_key):
        keep_run(report_of(run), files.report, options.python if options.image else None)


def leave_to_the_first(ctx: click.Context) -> Place:
    """Return this process's place in its launcher's group; end it where another one of this node does the run."""
    launched = place(os.environ)
    for complaint in complaints(os.environ):
        text = f"warning: {complaint}; it is not used: correct or unset it"
        click.echo(f"envcheck: {messages.last_line(text)}", err=True)
    why = node_files.left_to_the_first(launched, os.environ)
    if why is not None:
        if not ctx.obj.quiet:
            click.echo(f"envcheck: {why}", err=True)
        ctx.exit(0)
    return launched


def _destinations(options: RunOptions, launched: Place) -> Destinations:
    node = node_files.node_of(launched, nameless=options.redact or bool(options.redact_key))
    report = report_output_files.destination(options.output, report_output_files.DEFAULT, node, dry=options.dry_run)
    formats: dict[str, Path] = {}
    for option, name, output in (("html", "html", options.html), ("summary", "markdown", options.summary)):
        if output is not None:
            where = report_output_files.destination(output, output.path, node, option, name=name, dry=options.dry_run)
            formats |= {name: where} if where else {}
    inputs = {
        "baseline": options.baseline,
        "requirements": Path(options.requirements) if options.requirements else None,
    }
    report_output_files.apart(**inputs, output=report, html=formats.get("html"), summary=formats.get("markdown"))
    return Destinations(report, formats, *_redactions(options))


def _prepare(ctx: click.Context, options: RunOptions) -> Run:
    """Return the run that was asked for, with its plan and its target; nothing is measured yet."""
    from envcheck.matrix.file.load import load
    from envcheck.runner.container import shown_gpus
    from envcheck.runner.planning import plan
    from envcheck.runner.requirements import measured_demands, node_checks
    from envcheck.runner.state import Run

    matrix = ctx.obj.matrix
    requirements = _requirements(options.requirements, matrix)
    chosen = [*node_checks(requirements), *_chosen(options)]
    _exclusive(redact=options.redact or options.redact_key, resume=options.resume)
    _exclusive(budget=options.budget, repeat=options.repeat > 1, duration=options.duration)
    planned = plan(
        chosen,
        level=options.level,
        nproc=options.nproc,
        gpus=shown_gpus(),
        timeout=options.timeout,
        require_gpu=options.require_gpu,
        budget=options.budget,
        repeat=options.repeat,
        duration=options.duration,
    )
    if options.image is None and ctx.get_parameter_source("shm_size") is click.core.ParameterSource.COMMANDLINE:
        message = "--shm-size needs --image: it is the size of /dev/shm in a container"
        raise ConfigError(message, fix="give --image, or leave --shm-size out")
    target = _target(options.python, options.image, options.shm_size)
    run = Run(plan=planned, chosen=chosen, target=target, site=options.checks, spawn=options.spawn)
    run.matrix = load(matrix) if matrix else None
    run.demands = measured_demands(requirements)
    run.resolution = ctx.meta.get("envcheck.resolution")
    return run


def _requirements(requirements: str | None, matrix: Path | None) -> Requirements:
    """Return the requirements of a site's file, or none without a file."""
    from envcheck.matrix.file.load import load
    from envcheck.runner.requirements import Requirements, read

    return read(requirements, load(matrix) if matrix else None) if requirements else Requirements()


def _chosen(options: RunOptions) -> list[CheckModule]:
    from envcheck.runner.planning import discover, most_telling_first, select

    chosen = select(discover(options.checks), options.level, options.only, options.skip)
    return chosen if options.budget is None else most_telling_first(chosen)


def _exclusive(**options: object) -> None:
    names = [f"--{name}" for name, value in options.items() if value]
    if len(names) > 1:
        message = f"{' and '.join(names)} exclude each other"
        raise ConfigError(message, fix="give one of them")


def _resume(run: Run, path: Path) -> str:
    """Take the finished checks over from an unfinished report; return the line about it."""
    from envcheck import __version__
    from envcheck.reports.model import load

    if not path.exists():
        return f"no report at {path}: all checks run"
    run.go_on(load(path), path, __version__)
    return f"continuing {path}: {run.done} of {counted(len(run.plan.checks), 'check')} done"


def _target(python: str | None, image: str | None, shm_size: str) -> Target:
    if image is not None:
        from envcheck.runner.container import ContainerTarget

        return ContainerTarget(image, python=python, shm_size=shm_size)
    from envcheck.runner.local_python import LocalPython, answering, choose_python

    return LocalPython(answering(choose_python(Path(python) if python else None)))


def _redactions(options: RunOptions) -> tuple[Callable[[RunReport], RunReport], Callable[[str], str]]:
    """Return what is done to a report, and to a line, before it leaves this process for a file or the terminal."""
    if not options.redact and not options.redact_key:
        return (lambda report: report), (lambda line: line)
    from envcheck.reports.redact import redact

    names = messages.names(options.redact_key)
    return (lambda report: redact(report, options.redact_key, names)), messages.without_names(sys.argv[1:])
