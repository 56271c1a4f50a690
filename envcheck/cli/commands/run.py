"""`envcheck run`."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import click
from msgspec import structs
from rich.console import Console

from envcheck import __version__
from envcheck.checks import LEVELS
from envcheck.cli import Settings, report_output
from envcheck.cli.options import EXISTING_DIRECTORY, FILE, Duration, FiniteRange, Option, command_with, complete_checks
from envcheck.cli.report_output import Destinations, Output, OutputType
from envcheck.cli.shared import process
from envcheck.cli.shared.process import console as new_console
from envcheck.cli.shared.process import status_of
from envcheck.counting import counted
from envcheck.errors import UnavailableError, refuse
from envcheck.fleet.gate import keep_run
from envcheck.matrix.file.load import load as load_matrix
from envcheck.node.collect import collect
from envcheck.reports import terminal
from envcheck.reports.compare import compare, lines
from envcheck.reports.model import RunReport, encode, load, report_of, run_of
from envcheck.reports.model import load as load_report
from envcheck.reports.redact import redact
from envcheck.reports.terminal import LiveReport
from envcheck.runner.container import ContainerTarget, shown_gpus
from envcheck.runner.execute import Run, validate
from envcheck.runner.launcher import Place, complaints, place
from envcheck.runner.local_python import LocalPython, Target, answering, choose_python
from envcheck.runner.planning import discover, most_telling_first, plan, select
from envcheck.runner.requirements import Requirements, measured_demands, node_checks, read
from envcheck.runner.worker.process_limits import explained
from envcheck.runner.worker_session import RunPlan

_HIDING: Final[dict[str, Any]] = {"is_eager": True, "callback": process.hide_names}


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    python: Annotated[
        str | None, Option("The interpreter, or environment, to validate (with --image: in it).", metavar="PATH")
    ] = None
    image: Annotated[str | None, Option("A local image to validate, ours or not.", metavar="REF")] = None
    level: Annotated[str, Option("How much to check.", type=click.Choice(LEVELS))] = "standard"
    only: Annotated[
        tuple[str, ...],
        Option("Run this check alone, whatever its level. Repeatable.", metavar="ID", shell_complete=complete_checks),
    ] = ()
    require_gpu: Annotated[bool, Option("Fail if there is no GPU, instead of skipping.")] = False
    budget: Annotated[
        float | None, Option("Time budget, e.g. 60s. Checks that do not fit are skipped and listed.", type=Duration())
    ] = None
    output: Annotated[
        Output | None,
        Option("-o", "--output", f"The report; in DIR/ one per node. [{report_output.DEFAULT}]", type=OutputType()),
    ] = None
    html: Annotated[Output | None, Option("Write the report as one page, too.", type=OutputType())] = None
    junit: Annotated[Output | None, Option("Write the report as JUnit XML, too.", type=OutputType())] = None
    summary: Annotated[Output | None, Option("Append Markdown: $GITHUB_STEP_SUMMARY.", type=OutputType())] = None
    as_json: Annotated[bool, Option("--json", "Print the report as JSON.")] = False
    skip: Annotated[
        tuple[str, ...], Option("Leave this check out. Repeatable.", metavar="ID", shell_complete=complete_checks)
    ] = ()
    checks: Annotated[
        Path | None, Option("Directory with your own checks (node/*.py, env/*.py).", type=EXISTING_DIRECTORY)
    ] = None
    requirements: Annotated[
        str | None, Option("Fail if the node lacks what this TOML file (or: hgx-h100) requires.", metavar="FILE")
    ] = None
    baseline: Annotated[Path | None, Option("Fail if slower or worse than this report.", type=FILE)] = None
    resume: Annotated[bool, Option("Continue an unfinished run from its report.")] = False
    repeat: Annotated[
        int,
        Option(
            "Repeat all checks N times and report the worst result.",
            metavar="N",
            type=click.IntRange(1),
            show_default=False,
        ),
    ] = 1
    duration: Annotated[
        float | None, Option("Repeat all checks for this time, e.g. 10m, and report the worst result.", type=Duration())
    ] = None
    timeout: Annotated[
        float | None, Option("End each check after so many seconds, not after its own limit.", type=FiniteRange(0.1))
    ] = None
    nproc: Annotated[int, Option("Ranks of a group on a CPU.", type=click.IntRange(1))] = 2
    shm_size: Annotated[str | None, Option("Shared memory of the container (with --image).  [default: 8g]")] = None
    spawn: Annotated[bool, Option("Start every rank in a fresh Python instead of forking it.")] = False
    redact: Annotated[
        bool, Option("Write no names: hosts, users, UUIDs, serials and paths get pseudonyms.", **_HIDING)
    ] = False
    redact_key: Annotated[
        str, Option("Redact with this key's pseudonyms; keep it secret.", **_HIDING, metavar="TEXT")
    ] = ""
    dry_run: Annotated[bool, Option("Print what would be run, and for how long.")] = False


@command_with(RunOptions, "junit", short_help="Validate an environment: this one, another Python's, or an image's.")
def command(options: RunOptions, settings: Settings) -> int:
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
    launched = leave_to_the_first(quiet=settings.quiet)
    run = Run(_planned(options, settings.matrix))
    # Beside --json, what people read goes where a pipe does not.
    quiet, to_stderr = settings.quiet, options.as_json
    console = new_console(width=terminal.width(), highlight=False, stderr=to_stderr, quiet=to_stderr and quiet)
    places = _destinations(options, launched)
    # Read before anything is measured, or this report is written over it.
    earlier = load_report(options.baseline) if options.baseline else None
    if earlier and (options.redact or options.redact_key):
        process.learn(earlier)
    going_on = _resume(run, places.report or report_output.DEFAULT) if options.resume else None
    facts = run.asked.target.facts
    facts = structs.replace(facts, name=places.redacted_line(facts.name), chosen=places.redacted_line(facts.chosen))
    if options.dry_run:
        terminal.show_plan(run.asked.plan, facts, console, run.asked.demands)
    elif not quiet:
        terminal.show_announcement(run.asked.plan, facts, console)
    if going_on and (options.dry_run or not quiet):
        click.echo(going_on, err=to_stderr)
    if options.dry_run:
        return 0
    code = _run_and_report(run, places, console, earlier, as_json=to_stderr, quiet=quiet)
    _keep_for_the_gate(run, options, places)
    return code


def _keep_for_the_gate(run: Run, options: RunOptions, places: Destinations) -> None:
    """Keep the verdict for `envcheck fleet gate`, unless checks were left out or names are not to be written."""
    partly = options.only or options.skip or options.budget is not None or options.timeout is not None
    if not (partly or options.redact or options.redact_key):
        keep_run(report_of(run), places.report, options.python if options.image else None)


def leave_to_the_first(*, quiet: bool) -> Place:
    """Return this process's place in its launcher's group; end it where another one of this node does the run."""
    launched = place(os.environ)
    for complaint in complaints(os.environ):
        text = f"warning: {complaint}; it is not used: correct or unset it"
        click.echo(f"envcheck: {process.last_line(text)}", err=True)
    why = report_output.left_to_the_first(launched, os.environ)
    if why is not None:
        if not quiet:
            click.echo(f"envcheck: {why}", err=True)
        click.get_current_context().exit(0)
    return launched


def _destinations(options: RunOptions, launched: Place) -> Destinations:
    node = report_output.node_of(launched, nameless=options.redact or bool(options.redact_key))
    report = report_output.destination(options.output, report_output.DEFAULT, node, dry=options.dry_run)
    asked = {"html": options.html, "junit": options.junit, "markdown": options.summary}
    formats: dict[str, Path] = {}
    for name, output in asked.items():
        if output is not None:
            option = report_output.OPTIONS[name].removeprefix("--")
            where = report_output.destination(output, output.path, node, option, name=name, dry=options.dry_run)
            formats |= {name: where} if where else {}
    report_output.apart(
        baseline=options.baseline,
        requirements=Path(options.requirements) if options.requirements else None,
        output=report,
        html=formats.get("html"),
        junit=formats.get("junit"),
        summary=formats.get("markdown"),
    )
    return Destinations(report, formats, *_redactions(options))


def _planned(options: RunOptions, matrix: Path | None) -> RunPlan:
    """Return the plan of a run, and refuse what cannot be one; nothing is measured yet."""
    _exclusive(redact=options.redact or options.redact_key, resume=options.resume)
    _exclusive(budget=options.budget, repeat=options.repeat > 1, duration=options.duration)
    if options.image is None and options.shm_size is not None:
        refuse(
            "--shm-size needs --image: it is the size of /dev/shm in a container",
            "give --image, or leave --shm-size out",
        )
    facts = load_matrix(matrix) if matrix else None
    requirements = read(options.requirements, facts) if options.requirements else Requirements()
    checks = select(discover(options.checks), options.level, options.only, options.skip)
    chosen = [*node_checks(requirements), *(checks if options.budget is None else most_telling_first(checks))]
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
    return RunPlan(
        plan=planned,
        chosen=chosen,
        target=_target(options),
        site=options.checks,
        spawn=options.spawn,
        stretch=options.timeout is None,
        resolution=click.get_current_context().meta.get("envcheck.resolution"),
        matrix=facts,
        demands=measured_demands(requirements),
    )


def _exclusive(**options: object) -> None:
    names = [f"--{name}" for name, value in options.items() if value]
    if len(names) > 1:
        refuse(f"{' and '.join(names)} exclude each other", "give one of them")


def _resume(run: Run, path: Path) -> str:
    """Take the finished checks over from an unfinished report; return the line about it."""
    if not path.exists():
        return f"no report at {path}: all checks run"
    earlier = load(path)
    run.go_on(run_of(earlier), path, (earlier.tool, __version__))
    return f"continuing {path}: {run.done} of {counted(len(run.asked.plan.checks), 'check')} done"


def _target(options: RunOptions) -> Target:
    if options.image is not None:
        return ContainerTarget(options.image, python=options.python, shm_size=options.shm_size or "8g")
    return LocalPython(answering(choose_python(Path(options.python) if options.python else None)))


def _redactions(options: RunOptions) -> tuple[Callable[[RunReport], RunReport], Callable[[str], str]]:
    """Return what is done to a report, and to a line, before it leaves this process for a file or the terminal."""
    if not options.redact and not options.redact_key:
        return (lambda report: report), (lambda line: line)
    names = process.names(options.redact_key)
    return (lambda report: redact(report, options.redact_key, names)), process.without_names(sys.argv[1:])


def _held_against(
    earlier: RunReport, report: RunReport, printable: Callable[[str], str], *, as_json: bool, quiet: bool
) -> int:
    """Print what changed since the baseline; return 1 where anything got worse, 3 where nothing could be compared."""
    comparison = compare(earlier, report)
    printed = [printable(line) for line in lines(comparison)]
    click.echo("\n".join(printed[-1:] if quiet else ["", "Since the baseline", *printed]), err=as_json)
    return 1 if comparison.regressions else report.verdict.exit_code or comparison.exit_code


def _run_and_report(
    run: Run, files: Destinations, console: Console, earlier: RunReport | None, *, as_json: bool, quiet: bool
) -> int:
    """Measure and judge, write the report, print it, and return the exit code."""
    keeper, interrupted = _measured(run, files)
    report = report_of(run)
    kept = files.redacted(report)
    # Nothing is printed of how it ended before all of it is written.
    failed, option = (keeper.failed, "--output") if keeper.failed else _unwritten(kept, files)
    if failed is not None:
        _say_unwritten(failed, option, files)
        kept = _not_passed(kept)
    _print(kept, files, console, as_json=as_json, quiet=quiet, written=failed is None)
    if interrupted is not None:
        if files.report is not None and not quiet:
            click.echo("envcheck: interrupted; run the same command with --resume to continue", err=True)
        return status_of(interrupted)
    if failed is not None or earlier is None:
        return kept.verdict.exit_code
    return _held_against(earlier, report, files.redacted_line, as_json=as_json, quiet=quiet)


def _measured(run: Run, files: Destinations) -> tuple[LiveReport, KeyboardInterrupt | None]:
    """Run the checks; return what kept the report meanwhile, and the Ctrl-C or SIGTERM that ended it."""
    with terminal.Progress(run.asked.plan) as progress:
        keeper = LiveReport(run, files.report, progress, files.redacted)
        try:
            validate(run, collect, keeper)
        except KeyboardInterrupt as how:
            return keeper, how
    return keeper, None


def _print(
    report: RunReport, files: Destinations, console: Console, *, as_json: bool, quiet: bool, written: bool
) -> None:
    if as_json:
        click.echo(encode(report), nl=False)
    elif quiet:
        click.echo(report.verdict.sentence)
    else:
        lines = report_output.written(files) if written else []
        terminal.show(report, console, [files.redacted_line(line) for line in lines])


def _unwritten(report: RunReport, files: Destinations) -> tuple[OSError | None, str]:
    """Write the report in its other formats; return why one of them could not be written, and its option."""
    for name, path in files.formats.items():
        try:
            report_output.write(report, {name: path})
        except OSError as error:  # noqa: PERF203 (files are few)
            return error, report_output.OPTIONS[name]
    return None, ""


def _say_unwritten(error: OSError, option: str, files: Destinations) -> None:
    why = explained((error.strerror or str(error)).replace("No space left", "no space left"))
    fix = f"give {option} another file" if option.startswith("--") else "send it elsewhere"
    click.echo(files.redacted_line(f"envcheck: {error.filename or option}: {why}; free space, or {fix}"), err=True)


def _not_passed(report: RunReport) -> RunReport:
    """Return the report of a run that passed, and of which no file is there to show it: undetermined."""
    if report.verdict.exit_code:
        return report
    sentence = "UNDETERMINED: every check that ran is sound, but the report could not be written"
    verdict = structs.replace(report.verdict, status="error", exit_code=UnavailableError.exit_code, sentence=sentence)
    return structs.replace(report, verdict=verdict)
