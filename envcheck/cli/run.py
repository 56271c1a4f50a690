"""`envcheck run`."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from envcheck.checks import LEVELS
from envcheck.cli import _baseline, _complete, _files
from envcheck.cli._duration import Duration, Finite
from envcheck.errors import ConfigError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from envcheck.reports.model import RunReport
    from envcheck.runner.discover import Found
    from envcheck.runner.requirements import Requirements
    from envcheck.runner.run import Run
    from envcheck.runner.target import Target

_INTERRUPTED = 128 + signal.SIGINT


class Given(NamedTuple):
    """The options, as given."""

    python: str | None
    image: str | None
    level: str
    only: tuple[str, ...]
    skip: tuple[str, ...]
    checks: Path | None
    require_gpu: bool
    require: str | None
    nproc: int
    timeout: float | None
    shm_size: str
    spawn: bool
    output: Path | None
    budget: float | None
    repeat: int
    duration: float | None
    resume: bool
    baseline: Path | None
    html: Path | None
    summary: Path | None
    redact: bool
    redact_key: str
    as_json: bool
    dry_run: bool


class Files(NamedTuple):
    """Where the report goes, in which other forms, and what is done to it first."""

    report: Path | None
    forms: dict[str, Path]
    told_as: Callable[[RunReport], RunReport]


@click.command(short_help="Validate an environment: this one, another Python's, or an image's.")
@click.option("--python", metavar="PATH", help="The interpreter, or environment, to validate (with --image: in it).")
@click.option("--image", metavar="REF", help="A local image to validate, ours or not.")
@click.option("--level", type=click.Choice(LEVELS), default="standard", show_default=True, help="How much to check.")
@click.option(
    "--only",
    multiple=True,
    shell_complete=_complete.checks,
    metavar="ID",
    help="Run this check alone, whatever its level. Repeatable.",
)
@click.option(
    "--skip", multiple=True, shell_complete=_complete.checks, metavar="ID", help="Leave this check out. Repeatable."
)
@click.option(
    "--checks", type=click.Path(path_type=Path, exists=True, file_okay=False), help="Your own node/ and env/."
)
@click.option("--require-gpu", is_flag=True, help="Fail where there is no GPU, instead of skipping.")
@click.option("--require", metavar="FILE", help="Fail where the node lacks what this TOML asks for (or: hgx-h100).")
@click.option("--nproc", type=click.IntRange(1), default=2, show_default=True, help="Ranks of a group on a CPU.")
@click.option("--timeout", type=Finite(0.1), help="End a check after so many seconds, not its own limit.")
@click.option("--shm-size", default="8g", show_default=True, help="Shared memory of the container (with --image).")
@click.option("--spawn", is_flag=True, help="Start every rank in a fresh Python instead of forking it.")
@click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), help=f"The report [default: {_files.DEFAULT}]."
)
@click.option(
    "--budget", type=Duration(), help="Begin no check that is not planned to fit, e.g. 60s; name what is left."
)
@click.option("--repeat", type=click.IntRange(1), default=1, help="Soak: do all of it so many times; the worst counts.")
@click.option("--duration", type=Duration(), help="Soak: begin again until this time is over, e.g. 10m.")
@click.option("--resume", is_flag=True, help="Go on where a run that was cut short stopped, from its report.")
@click.option("--baseline", type=click.Path(path_type=Path, dir_okay=False), help="Fail where this report was better.")
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Write the report as one page, too.")
@click.option(
    "--summary", type=click.Path(path_type=Path, dir_okay=False), help="Append Markdown: $GITHUB_STEP_SUMMARY."
)
@click.option("--redact", is_flag=True, help="Write no names: hosts, users, UUIDs, serials and paths get pseudonyms.")
@click.option("--redact-key", default="", metavar="TEXT", help="--redact with this key's pseudonyms; keep it secret.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--dry-run", is_flag=True, help="Print what would be run, and for how long.")
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> None:
    """Validate an environment, and say with numbers whether it is fit.

    \b
    envcheck run                                 the active environment
    envcheck run --python /opt/venv              any other on this machine
    envcheck run --image REF --require-gpu       an image, on this node's GPUs
    envcheck run --budget 60s                    the most telling that fits
    envcheck run --level full --duration 10m     again and again: a soak
    envcheck run --baseline good.json            held against an earlier run

    Nothing is installed in the environment. Exit 0: what was required passed;
    1: a check failed; 2: wrong usage; 3: it could not be told. What a budget
    leaves out is a skip, and the last line counts it: the exit code is that of
    what was run, so 3 where nothing fits.
    """
    from envcheck.cli._strict import console as new_console
    from envcheck.reports import terminal

    given = Given(**options)
    run = _prepare(ctx, given)
    # Beside --json, what people read goes where a pipe does not.
    quiet, apart = ctx.obj.quiet, given.as_json
    console = new_console(width=terminal.width(), highlight=False, stderr=apart, quiet=apart and quiet)
    files = _destinations(given)
    earlier = _baseline.read(given.baseline)
    going_on = _go_on(run, given.output or _files.DEFAULT) if given.resume else None
    if given.dry_run:
        terminal.show_plan(run.plan, run.target.facts, console, run.demands)
        if going_on:
            click.echo(going_on, err=apart)
        return
    if not quiet:
        terminal.show_announcement(run.plan, run.target.facts, console)
    if going_on and not quiet:
        click.echo(going_on, err=apart)
    ctx.exit(_run(run, files, console, earlier, as_json=apart, quiet=quiet))


def _destinations(given: Given) -> Files:
    _files.apart(output=given.output or _files.DEFAULT, html=given.html, summary=given.summary)
    also = {"html": (given.html, "html"), "markdown": (given.summary, "summary")}
    forms = {form: path for form, (path, option) in also.items() if path and _files.destination(path, option)}
    return Files(_files.destination(given.output), forms, _told_as(given))


def _prepare(ctx: click.Context, given: Given) -> Run:
    """Return the run that was asked for, with its plan and its target; nothing is measured yet."""
    from envcheck.matrix.load import load
    from envcheck.runner import bought, requirements
    from envcheck.runner.devices import shown_gpus
    from envcheck.runner.plan import plan
    from envcheck.runner.run import Run

    matrix = ctx.obj.matrix
    wanted = _wanted(given.require, matrix)
    chosen = [*bought.checks(wanted), *_chosen(given)]
    _exclusive(redact=given.redact or given.redact_key, resume=given.resume)
    _exclusive(budget=given.budget, repeat=given.repeat > 1, duration=given.duration)
    planned = plan(
        chosen,
        level=given.level,
        nproc=given.nproc,
        gpus=shown_gpus(),
        timeout=given.timeout,
        require_gpu=given.require_gpu,
        budget=given.budget,
        repeat=given.repeat,
        duration=given.duration,
    )
    if given.image is None and ctx.get_parameter_source("shm_size") is click.core.ParameterSource.COMMANDLINE:
        message = "--shm-size is a container's, and there is none without --image"
        raise ConfigError(message, fix="give --image, or leave it out")
    target = _target(given.python, given.image, given.shm_size)
    run = Run(plan=planned, chosen=chosen, target=target, site=given.checks, spawn=given.spawn)
    run.matrix = load(matrix) if matrix else None
    run.demands = requirements.measured(wanted)
    run.resolution = ctx.meta.get("envcheck.resolution")
    return run


def _wanted(require: str | None, matrix: Path | None) -> Requirements:
    """Return what a site's file demands; nothing where none is given."""
    from envcheck.matrix.load import load
    from envcheck.runner.requirements import Requirements, read

    return read(require, load(matrix) if matrix else None) if require else Requirements()


def _chosen(given: Given) -> list[Found]:
    from envcheck.runner.budget import most_telling_first
    from envcheck.runner.discover import discover
    from envcheck.runner.plan import select

    chosen = select(discover(given.checks), given.level, given.only, given.skip)
    return chosen if given.budget is None else most_telling_first(chosen)


def _exclusive(**given: object) -> None:
    names = [f"--{name}" for name, value in given.items() if value]
    if len(names) > 1:
        message = f"{' and '.join(names)} exclude each other"
        raise ConfigError(message, fix="give one of them")


def _go_on(run: Run, path: Path) -> str:
    """Take over what is known from a report that was cut short; return what is said of it."""
    from envcheck import __version__
    from envcheck.reports.model import load

    if not path.exists():
        return f"no report at {path} to go on with: from the beginning"
    run.go_on(load(path), path, __version__)
    return f"going on with {path}: {run.done} of {len(run.plan.checks)} checks are done"


def _target(python: str | None, image: str | None, shm_size: str) -> Target:
    if image is not None:
        from envcheck.runner.container import ContainerTarget

        return ContainerTarget(image, python=python, shm_size=shm_size)
    from envcheck.runner.processes import LocalPython, answering
    from envcheck.runner.target import choose_python

    return LocalPython(answering(choose_python(Path(python) if python else None)))


def _told_as(given: Given) -> Callable[[RunReport], RunReport]:
    """Return what is done to a report before it leaves this process for anything but the terminal."""
    if not given.redact and not given.redact_key:
        return lambda report: report
    from envcheck.reports.redact import redact

    return lambda report: redact(report, given.redact_key)


def _run(
    run: Run,
    files: Files,
    console: Console,
    earlier: RunReport | None,
    *,
    as_json: bool,
    quiet: bool,
) -> int:
    from envcheck.node.collect import collect
    from envcheck.reports import terminal
    from envcheck.reports.model import encode, report_of
    from envcheck.reports.watch import Keeper
    from envcheck.runner.drive import validate

    interrupted = False
    with terminal.Progress(run.plan) as progress:
        keeper = Keeper(run, files.report, progress, files.told_as)
        try:
            validate(run, collect, keeper)
        except KeyboardInterrupt:
            interrupted = True
    report = report_of(run)
    kept = files.told_as(report)
    if as_json:
        click.echo(encode(kept), nl=False)
    elif quiet:
        click.echo(report.verdict.sentence)
    else:
        terminal.show(report, console, _files.written(files.report, files.forms))
    _files.write(kept, files.forms)
    if interrupted:
        if files.report is not None and not quiet:
            click.echo("envcheck: interrupted; the same command with --resume goes on", err=True)
        return _INTERRUPTED
    if keeper.failed is not None:
        # The run is told all the same; whoever relies on its file has to know that it is not there.
        told = f"envcheck: {keeper.failed.filename}: {keeper.failed.strerror}; free space or give --output"
        click.echo(told, err=True)
        return report.verdict.exit_code or UnavailableError.exit_code
    return (
        _baseline.held_against(earlier, report, as_json=as_json, quiet=quiet) if earlier else report.verdict.exit_code
    )
