"""`envcheck run`."""

import functools
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import click
from msgspec import structs

from envcheck import __version__
from envcheck.checks import LEVELS
from envcheck.cli import Settings, report_output
from envcheck.cli.options import (
    FILE,
    ChecksDirectory,
    Duration,
    EnvironmentOptions,
    FiniteRange,
    Option,
    command_with,
    complete_checks,
    exclusive,
)
from envcheck.cli.report_output import DEFAULT, Destinations, Output, OutputType
from envcheck.cli.shared import process
from envcheck.cli.shared.process import last_line, say
from envcheck.counting import counted
from envcheck.errors import UnavailableError, all_of, refuse
from envcheck.fleet.gate import keep_run
from envcheck.matrix.file.load import load as load_matrix
from envcheck.node.collect import collect, shown_gpus
from envcheck.reports import terminal
from envcheck.reports.compare import compare, lines
from envcheck.reports.model import RunReport, encode, load, report_of, run_of
from envcheck.reports.redact import learn, redact
from envcheck.runner.execute import Run, validate
from envcheck.runner.launcher import Place
from envcheck.runner.planning import discover, most_telling_first, plan, select
from envcheck.runner.requirements import Requirements, measured_demands, node_checks, read, with_mounts
from envcheck.runner.worker.process_limits import explained
from envcheck.runner.worker_session import RunPlan

_HIDING: Final[dict[str, Any]] = {"is_eager": True, "callback": process.hide_names}
_CHECK: Final[dict[str, Any]] = {"metavar": "ID", "shell_complete": complete_checks}


class RunOptions(EnvironmentOptions):
    level: Annotated[str, Option("How much to check.", type=click.Choice(LEVELS))] = "standard"
    only: Annotated[tuple[str, ...], Option("Run this check alone. Repeatable.", **_CHECK)] = ()
    budget: Annotated[float | None, Option("Time, e.g. 60s; what does not fit is skipped.", type=Duration())] = None
    output: Annotated[
        Output | None,
        Option(
            "-o", "--output", f"The report; in DIR/ one a node; - prints it. [{DEFAULT}]", type=OutputType(printed=True)
        ),
    ] = None
    html: Annotated[Output | None, Option("Write the report as one page, too.", type=OutputType())] = None
    junit: Annotated[Output | None, Option("Write the report as JUnit XML, too.", type=OutputType())] = None
    summary: Annotated[Output | None, Option("Append Markdown: $GITHUB_STEP_SUMMARY.", type=OutputType())] = None
    as_json: Annotated[bool, Option("--json", "Print the report as JSON.")] = False
    skip: Annotated[tuple[str, ...], Option("Leave this check out. Repeatable.", **_CHECK)] = ()
    checks: ChecksDirectory = None
    requirements: Annotated[str | None, Option("What the node must have: TOML, or hgx-h100.", metavar="FILE")] = None
    baseline: Annotated[Path | None, Option("Fail if slower or worse than this report.", type=FILE)] = None
    resume: Annotated[bool, Option("Continue an unfinished run from its report.")] = False
    repeat: Annotated[int, Option("Repeat N times; the worst counts.", metavar="N", type=click.IntRange(1))] = 1
    duration: Annotated[float | None, Option("Repeat for so long, e.g. 10m; the worst counts.", type=Duration())] = None
    timeout: Annotated[float | None, Option("Seconds after which a check is ended.", type=FiniteRange(0.1))] = None
    nproc: Annotated[int, Option("Ranks of a group on a CPU.", type=click.IntRange(1))] = 2
    shm_size: Annotated[str | None, Option("Shared memory of the container (with --image).  [default: 8g]")] = None
    spawn: Annotated[bool, Option("Start every rank in a fresh Python instead of forking it.")] = False
    redact: Annotated[bool, Option("Write pseudonyms for hosts, users, UUIDs, serials and paths.", **_HIDING)] = False
    redact_key: Annotated[str, Option("Key of the pseudonyms; keep it secret.", **_HIDING, metavar="TEXT")] = ""
    dry_run: Annotated[bool, Option("Print what would be run, and for how long.")] = False

    @property
    def printed(self) -> bool:
        """Return whether the report goes to standard output and into no file."""
        return self.output is not None and self.output.printed

    @property
    def nameless(self) -> bool:
        """Return whether no names are written."""
        return self.redact or bool(self.redact_key)


@command_with(RunOptions, "junit")
def command(options: RunOptions, settings: Settings) -> int:
    """Validate an environment: this one, another Python's, or an image's."""
    launched = report_output.leave_to_the_first(quiet=settings.quiet)
    if options.printed:
        options = replace(options, as_json=True)
    run = Run(_planned(options, settings.matrix))
    places = _destinations(options, launched)
    # Read before anything is measured, or this report is written over it.
    earlier = load(options.baseline) if options.baseline else None
    if earlier and options.nameless:
        learn(earlier, process.names())
    going_on = _resume(run, places.report or report_output.DEFAULT) if options.resume else None
    facts = run.asked.target.facts
    facts = structs.replace(facts, name=last_line(facts.name), chosen=last_line(facts.chosen))
    # Of several nodes that print to one place each says one line; the whole is in its report.
    beside = launched.several_nodes and launched.world > 1 and places.report is not None
    quiet = settings.quiet or (beside and not settings.verbose and not options.as_json and not sys.stdout.isatty())
    # Beside --json, what people read goes where a pipe does not.
    to_stderr = options.as_json
    console = process.console(width=terminal.width(), highlight=False, stderr=to_stderr, quiet=to_stderr and quiet)
    if options.dry_run:
        terminal.show_plan(run.asked.plan, facts, console, measured_demands(run.asked.requirements))
    elif not quiet:
        terminal.show_announcement(run.asked.plan, facts, console)
    if going_on and (options.dry_run or not quiet):
        click.echo(going_on, err=to_stderr)
    if options.dry_run:
        return 0
    code = _run_and_report(run, places, earlier, options, structs.replace(settings, quiet=quiet))
    # The verdict is kept for `envcheck fleet gate`, unless checks were left out or names are not to be written.
    partly = options.only or options.skip or options.budget is not None or options.timeout is not None
    if not (partly or options.nameless):
        keep_run(report_of(run), options.python if options.image else None)
    return code


def _destinations(options: RunOptions, launched: Place) -> Destinations:
    node = report_output.node_of(launched, nameless=options.nameless)
    report = None
    if not options.printed:
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
    names = process.names(options.redact_key) if options.nameless else None
    return Destinations(report, formats, lambda full: redact(full, options.redact_key, names) if names else full)


def _planned(options: RunOptions, matrix: Path | None) -> RunPlan:
    exclusive(redact=options.nameless, resume=options.resume)
    exclusive(resume=options.resume, **{"output -": options.printed})
    exclusive(budget=options.budget, repeat=options.repeat > 1, duration=options.duration)
    if options.image is None and options.shm_size is not None:
        refuse("--shm-size needs --image: it is the size of /dev/shm in a container", "give --image, or leave it out")
    facts = load_matrix(matrix) if matrix else None
    requirements, checks, target = all_of(
        lambda: read(options.requirements, facts) if options.requirements else Requirements(),
        lambda: select(discover(options.checks), options.level, options.only, options.skip),
        lambda: options.target(options.shm_size or "8g"),
    )
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
        target=target,
        site=options.checks,
        spawn=options.spawn,
        stretch=options.timeout is None,
        resolution=click.get_current_context().meta.get("envcheck.resolution"),
        matrix=facts,
        requirements=requirements,
    )


def _resume(run: Run, path: Path) -> str:
    """Take the finished checks over from an unfinished report; return the line about it."""
    if not path.exists():
        return f"no report at {path}: all checks run"
    earlier = load(path)
    run.go_on(run_of(earlier), path, (earlier.tool, __version__))
    return f"continuing {path}: {run.done} of {counted(len(run.asked.plan.checks), 'check')} done"


def _run_and_report(
    run: Run, files: Destinations, before: RunReport | None, options: RunOptions, settings: Settings
) -> int:
    quiet, interrupted = settings.quiet, None
    with terminal.LiveReport(run, files.report, files.redacted) as keeper:
        try:
            validate(run, functools.partial(with_mounts, run.asked.requirements.mounts, collect), keeper)
        except KeyboardInterrupt as how:
            interrupted = how
    report = report_of(run)
    kept = files.redacted(report)
    # Nothing is printed of how it ended before all of it is written.
    failed, option = (keeper.failed, "--output") if keeper.failed else report_output.unwritten(kept, files.formats)
    if failed is not None:
        why = explained((failed.strerror or str(failed)).replace("No space left", "no space left"))
        say(f"{failed.filename or option}: {why}; free space, or give {option} another file")
        kept = _not_passed(kept)
    if options.as_json:
        click.echo(encode(kept), nl=False)
    elif quiet:
        where = f"; {files.report}" if files.report and kept.host.place.several_nodes else ""
        click.echo(last_line(f"{_before(kept)}{kept.verdict.sentence}{where}"))
    else:
        lines = report_output.written(files) if failed is None else []
        console = process.console(width=terminal.width(), highlight=False)
        terminal.show(kept, console, [*map(last_line, lines)], verbose=settings.verbose)
    if interrupted is not None:
        if files.report is not None and not quiet:
            say("interrupted; run the same command with --resume to continue")
        return process.status_of(interrupted)
    if failed is not None or before is None:
        return kept.verdict.exit_code
    return _held_against(before, report, err=options.as_json, quiet=quiet)


def _before(report: RunReport) -> str:
    """Return what a line begins with where other nodes say theirs beside it: the node."""
    where = report.host.place
    return f"{where.node or report.host.name}: " if where.several_nodes else ""


def _held_against(earlier: RunReport, report: RunReport, *, err: bool, quiet: bool) -> int:
    """Print what changed since the baseline; return 1 where anything got worse, 3 where nothing could be compared."""
    comparison = compare(earlier, report)
    told = lines(comparison)
    told = [f"{_before(report)}{told[-1]}"] if quiet else ["", "Since the baseline", *told]
    click.echo("\n".join(map(last_line, told)), err=err)
    return 1 if comparison.regressions else report.verdict.exit_code or comparison.exit_code


def _not_passed(report: RunReport) -> RunReport:
    """Return the report of a run that passed, and of which no file is there to show it: undetermined."""
    if report.verdict.exit_code:
        return report
    sentence = "UNDETERMINED: every check that ran is sound, but the report could not be written"
    verdict = structs.replace(report.verdict, status="error", exit_code=UnavailableError.exit_code, sentence=sentence)
    return structs.replace(report, verdict=verdict)
