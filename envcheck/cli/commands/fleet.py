"""`envcheck fleet report`, `plan`, `group`, `pairs`, `render`: the reports of many nodes, and what starts on them."""

import os
import shlex
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import click

from envcheck import safe_files
from envcheck.cli import Settings, report_output
from envcheck.cli.options import (
    DIRECTORY,
    FILE,
    Argument,
    Duration,
    EnvironmentOptions,
    JsonOption,
    Option,
    Options,
    ReleaseOptions,
    command_with,
)
from envcheck.cli.report_output import Node, ReportOutput
from envcheck.cli.shared.process import console as new_console
from envcheck.cli.shared.process import note, print_answer, status_of
from envcheck.counting import counted
from envcheck.errors import refuse
from envcheck.fleet import cover, gate, shown, summary
from envcheck.fleet.files import history_lines, read_files
from envcheck.fleet.group.membership import Membership, membership
from envcheck.fleet.group.outcome import of_group, of_node
from envcheck.fleet.group.session import chosen, met
from envcheck.fleet.hostlist import fold, unfold
from envcheck.fleet.kubernetes_pods import Gang, PodOptions
from envcheck.fleet.launch_files import LaunchValues, launch_files
from envcheck.fleet.one_report import FORMED
from envcheck.fleet.pairs import results
from envcheck.fleet.pairs.diagnosis import SMALL, diagnosis
from envcheck.fleet.pairs.launch import SLURM, Launcher, PairsState, begin, checked, run_tests
from envcheck.fleet.pairs.results import ROLL_CALL, GroupResult, GroupTest
from envcheck.matrix.file.load import load
from envcheck.matrix.resolver.query import Query, normalized
from envcheck.node.collect import collect, shown_gpus
from envcheck.reports import terminal
from envcheck.reports.formats.prometheus import exposition
from envcheck.reports.model import encode, report_of
from envcheck.runner.execute import Run, validate
from envcheck.runner.planning import plan
from envcheck.runner.worker_session import RunPlan


class FleetReportOptions(JsonOption):
    places: Annotated[tuple[Path, ...], Argument(required=True, metavar="DIR|FILE...")] = ()
    expect: Annotated[str | None, Option("The nodes that must have a report: n[1-64].", metavar="NODELIST")] = None
    max_age: Annotated[float, Option("Older reports are stale.", type=Duration())] = 86400.0
    html: Annotated[Path | None, Option("Write one page: nodes and checks, outliers, drift.", type=FILE)] = None
    prometheus: Annotated[Path | None, Option("Write metrics of all nodes, in one file.", type=FILE)] = None
    history: Annotated[str | None, Option("Print how often this one failed, and why.", metavar="NODE|GPU-UUID")] = None
    strict: Annotated[bool, Option("Drift and outliers count as failures, and leave `use now`.")] = False


@command_with(FleetReportOptions, name="report")
def report(options: FleetReportOptions, settings: Settings) -> int:  # noqa: ARG001 (all commands take them)
    """Say which nodes failed, are missing, stale, undetermined or different, and which to use now."""
    written = {"--html": options.html, "--prometheus": options.prometheus}
    for option, path in written.items():
        if path is not None and (path.suffix == ".json" or path in options.places):
            refuse(f"{option} {path} would be read as a report", "give it a name that does not end in .json")
    report_output.apart(html=options.html, prometheus=options.prometheus)
    expected = [] if options.expect is None else unfold(options.expect)
    files = read_files(options.places)
    if options.history is not None:
        past = history_lines(summary.under_one_name(files, [options.history]), options.history)
        click.echo("\n".join(part for line in past for part in shown.wrapped(line, "")))
        return 0
    question = summary.FleetQuestion(time.time(), expected, options.max_age, options.strict, options.places)
    answer = summary.summarize(files, question)
    code = answer.report.verdict.exit_code
    print_answer(answer.report, shown.lines(answer.report), as_json=options.as_json)
    if options.html is not None:
        report_output.deliver(options.html, shown.page(answer).encode(), code)
    if options.prometheus is not None:
        report_output.deliver(options.prometheus, exposition(shown.samples(answer)).encode(), code)
    return code


class FleetPlanOptions(ReleaseOptions, JsonOption):
    places: Annotated[tuple[Path, ...], Argument(required=True, metavar="DIR|FILE|CSV...")] = ()


@command_with(FleetPlanOptions, name="plan")
def plan_(options: FleetPlanOptions, settings: Settings) -> int:
    """Say which published cells cover all nodes, with the fewest images, and which nodes no cell covers."""
    wish = normalized(Query(torch=options.torch, cuda=options.cuda, python=options.python))
    planned = cover.plan(load(settings.matrix), cover.of_places(options.places), wish)
    print_answer(planned, shown.plan_lines(planned), as_json=options.as_json)
    return 1 if planned.uncovered else 0


class FleetGroupOptions(EnvironmentOptions):
    only: Annotated[tuple[str, ...], Option("Run this check alone. Repeatable.", metavar="ID")] = ()
    nproc: Annotated[int, Option("Ranks of a node without a GPU.", type=click.IntRange(1, 1024))] = 1
    wait: Annotated[float, Option("How long nodes wait for the others.", type=Duration())] = 180.0
    run_id: Annotated[str | None, Option("The group's name. [Slurm's step, torchrun's run]", metavar="TEXT")] = None
    output: ReportOutput = None


@command_with(FleetGroupOptions, name="group")
def group(options: FleetGroupOptions, settings: Settings) -> int:
    """Measure what lies between nodes: collectives, links and slow ranks."""
    member = membership(os.environ, options.run_id)
    launched = report_output.leave_to_the_first(quiet=settings.quiet)
    name = member.name or report_output.node_of(launched, nameless=False).name
    checks = chosen(options.only)
    planned = plan(checks, level="standard", nproc=options.nproc, gpus=shown_gpus(), require_gpu=options.require_gpu)
    run = Run(RunPlan(plan=planned, chosen=checks, target=options.target()))
    nodes = (Node(called, several=True) for called in (name, "group"))
    own, whole = (report_output.destination(options.output, report_output.DEFAULT, node, dry=False) for node in nodes)
    interrupted = _measured(run, member, name, options, own)
    report = of_group(report_of(run))
    mine = of_node(report_of(run), member.node)
    paths = {own: mine} | ({} if member.node or run.group is None else {whole: report})
    files = {path: encode(content) for path, content in paths.items() if path is not None}
    fix = "free space, or give --output another place"
    unwritten = [path for path, content in files.items() if not report_output.kept(path, content, fix)]
    if member.node:
        unformed = run.group is None and FORMED in run.known
        click.echo(f"{name}: {mine.verdict.sentence}{f': {run.known[FORMED].summary}' if unformed else ''}")
    elif settings.quiet:
        click.echo(report.verdict.sentence)
    else:
        console = new_console(width=terminal.width(), highlight=False)
        lines = [f"report: {path}" for path in files]
        terminal.show(report, console, lines, verbose=settings.verbose)
    sys.stdout.flush()
    code = report.verdict.exit_code
    return status_of(interrupted) if interrupted is not None else code or 3 if unwritten else code


def _measured(
    run: Run, member: Membership, name: str, options: FleetGroupOptions, own: Path | None
) -> KeyboardInterrupt | None:
    run.begin()
    try:
        with met(run, member, name, max(options.nproc, member.processes), options.wait) as formed:
            if formed:
                with terminal.LiveReport(run, own, lambda report: of_node(report, member.node)) as live:
                    validate(run, collect, live)
    except KeyboardInterrupt as how:
        return how
    return None


class FleetPairsOptions(EnvironmentOptions, JsonOption):
    nodes: Annotated[str, Option("The nodes as a Slurm host list: n[1-64].", metavar="LIST")]
    mode: Annotated[Literal["tournament", "diagnose"] | None, Option("Default: tournament up to 16 nodes.")] = None
    launch: Annotated[str, Option("Starts {command} on {nodes}, {count} in number.", metavar="COMMAND")] = SLURM
    timeout: Annotated[float, Option("Time for one test.", type=Duration())] = 600.0
    state: Annotated[
        Path, Option("Results so far, on a file system that all nodes share; reports go beside it.", type=FILE)
    ] = Path("envcheck-fleet-pairs.json")
    dry_run: Annotated[bool, Option("Print the first commands, and stop.")] = False


@command_with(FleetPairsOptions, name="pairs")
def pairs(options: FleetPairsOptions, settings: Settings) -> int:  # noqa: ARG001 (all commands take them)
    """Find the node, link or GPU at fault by tests of groups, with the tests that say so."""
    if not options.state.parent.is_dir():
        refuse(f"--state {options.state}: there is no directory {options.state.parent}", "create it on a shared disk")
    nodes = tuple(unfold(options.nodes))
    if len(nodes) < 2:  # noqa: PLR2004 (a group)
        refuse(
            f"--nodes {options.nodes[:60]!r} names {counted(len(nodes), 'node')}",
            "name two nodes or more; one node alone is `envcheck run`",
        )
    mode = options.mode or ("diagnose" if len(nodes) > SMALL else "tournament")
    folder = options.state.absolute().with_name(f"{options.state.stem}-reports")
    launcher = Launcher(_with_environment(options), folder, options.timeout)
    if options.dry_run:
        for test in (GroupTest(ROLL_CALL, nodes), GroupTest("group", nodes[:2])):
            click.echo(shlex.join(launcher.command(test, folder)))
        return 0
    first = shlex.split(launcher.template)[0]
    if first != "{command}" and shutil.which(first) is None:
        refuse(
            f"{first} is not on PATH, so that no test can start",
            "run this where Slurm's srun is, or give --launch a command of your own",
        )
    with safe_files.held(
        options.state.with_name(f".{options.state.name}.lock"),
        lambda: refuse(f"another run is using {options.state}", "wait for it, or give --state another file"),
    ):
        state = begin(options.state, PairsState(fold(nodes), mode, launcher.template))
        planned = diagnosis(nodes, every_pair=mode == "tournament")
        found = run_tests(planned, state, options.state, launcher, _progress)
    document = results.document(found, mode, state.nodes, len(state.results))
    print_answer(document, results.lines(found), as_json=options.as_json)
    return found.exit_code


def _with_environment(options: FleetPairsOptions) -> str:
    """Return --launch with what each {command} is given: `envcheck run` and `fleet group` take the same words."""
    words = shlex.split(checked(options.launch))
    given = {"--python": options.python, "--image": options.image}
    more = [word for option, value in given.items() if value for word in (option, value)]
    more += ["--require-gpu"] * options.require_gpu
    at = words.index("{command}") + 1
    return shlex.join([*words[:at], *more, *words[at:]]) if more else options.launch


def _progress(test: GroupTest, result: GroupResult) -> None:
    reason = f": {result.reason}" if result.reason and result.status != "pass" else ""
    if test.step != ROLL_CALL or test.attempt == 1 or result.answers:  # who is silent twice is in the verdict, once
        note(f"{test.step} {results.name_of(test.nodes)}: {result.status}{reason}")


class FleetRenderOptions(Options):
    system: Annotated[Literal["slurm", "kubernetes", "prometheus"], Argument()]
    image: Annotated[str | None, Option("The image to judge, by digest.", metavar="REF@DIGEST")] = None
    python: Annotated[str | None, Option("Slurm: an environment to judge, not an image.", metavar="PATH")] = None
    nodes: Annotated[int, Option("How many nodes.", type=click.IntRange(1, 100_000))] = 1
    gpus: Annotated[int, Option("GPUs of a node; 0: none.", type=click.IntRange(0, 64))] = 8
    level: Annotated[Literal["static", "quick", "standard", "full"], Option("How much to check.")] = "quick"
    max_age: Annotated[float, Option("Oldest verdict that gates accept.", type=Duration())] = 900.0
    budget: Annotated[float, Option("Time limit for the checks of a gate.", type=Duration())] = 60.0
    output: Annotated[Path | None, Option("-o", "--output", "Write the files in here.", type=DIRECTORY)] = None
    on_error: Annotated[Literal["refuse", "admit"], Option("What gates do if the node cannot be judged.")] = "admit"
    program: Annotated[str | None, Option("Slurm: envcheck on the nodes. [this one]", metavar="PATH")] = None
    scripts: Annotated[str, Option("Slurm: where slurmd finds the scripts.")] = "/etc/slurm/envcheck"
    reports: Annotated[str | None, Option("Slurm: shared directory. [./envcheck-reports]", metavar="DIR")] = None
    state: Annotated[str, Option("Where a node keeps its verdicts.")] = gate.STATE
    namespace: Annotated[str, Option("Kubernetes: the namespace.")] = "default"
    variables: Annotated[
        tuple[str, ...], Option("--env", "Kubernetes: NCCL_*, FI_*, UCX_*, GLOO_* of pods.", metavar="NAME=VALUE")
    ] = ()
    max_drained: Annotated[
        float, Option("Slurm: percent of a partition to drain at once.", type=click.FloatRange(0, 100))
    ] = 10.0
    drain: Annotated[bool, Option("Kubernetes: taint nodes whose check failed (adds rbac.yaml).")] = False
    node_selector: Annotated[tuple[str, ...], Option("Kubernetes: a label of nodes.", metavar="KEY=VALUE")] = ()
    toleration: Annotated[tuple[str, ...], Option("Kubernetes: a taint.", metavar="KEY[=VALUE][:EFFECT]")] = ()
    resource: Annotated[tuple[str, ...], Option("Kubernetes: rdma/hca=8, cpu=32, memory=1Ti.", metavar="NAME=N")] = ()
    claim: Annotated[tuple[str, ...], Option("Kubernetes: a ResourceClaimTemplate (DRA).", metavar="NAME")] = ()
    pull_secret: Annotated[tuple[str, ...], Option("Kubernetes: secret of the registry.", metavar="NAME")] = ()
    runtime_class: Annotated[str | None, Option("Kubernetes: runtime class, e.g. nvidia.", metavar="NAME")] = None
    priority_class: Annotated[str | None, Option("Kubernetes: priority class.", metavar="NAME")] = None
    scheduler: Annotated[str | None, Option("Kubernetes: scheduler of Job, JobSet and Pod.", metavar="NAME")] = None
    queue: Annotated[str | None, Option("Kubernetes: LocalQueue of Kueue.", metavar="NAME")] = None
    gang: Annotated[Gang | None, Option("Kubernetes: place all ranks of a group, or none.")] = None
    host_network: Annotated[bool, Option("Kubernetes: pods use the node's network.")] = False
    hosts: Annotated[str, Option("Prometheus: nodes with DCGM's exporter, e.g. n[1-16].", metavar="HOSTLIST")] = ""


@command_with(FleetRenderOptions, "on_error", name="render")
def render(options: FleetRenderOptions, settings: Settings) -> None:
    """Write the files with which Slurm or Kubernetes runs envcheck, or Prometheus watches GPUs. Nothing is applied."""
    pods = PodOptions(*(getattr(options, name) for name in PodOptions._fields))
    of_pods, of_slurm = ("variables", "namespace", "drain", *PodOptions._fields), ("program", "scripts", "max_drained")
    elsewhere = {
        "slurm": (*of_pods, "hosts"),
        "kubernetes": (*of_slurm, "reports", "hosts"),
        "prometheus": (*of_pods, *of_slurm, "reports", "image", "python"),
    }
    for name in [n for n in elsewhere[options.system] if getattr(options, n) != getattr(FleetRenderOptions, n)]:
        refuse(
            f"--{'env' if name == 'variables' else name.replace('_', '-')} has no place in the files for"
            f" {options.system.title()}",
            "leave it out" + "; set the variable where sbatch runs, which passes it on" * (name == "variables"),
        )
    given: dict[str, Any] = {name: value for name, value in asdict(options).items() if name in LaunchValues._fields}
    given["program"] = options.program or _this_program()
    given["reports"] = options.reports or str(Path.cwd() / "envcheck-reports")
    for name, text in launch_files(options.system, LaunchValues(**given, pods=pods)).items():
        if options.output is None:
            click.echo(f"# {name}\n{text}", nl=False)
            continue
        options.output.mkdir(parents=True, exist_ok=True)
        path = options.output / name
        safe_files.put(path, text.encode(), 0o755 if name.endswith((".sh", ".sbatch")) else 0o644)
        if not settings.quiet:
            click.echo(f"wrote {path}")


def _this_program() -> str:
    named = Path(sys.argv[0])
    return str(named.absolute()) if named.name == "envcheck" else shutil.which("envcheck") or "/usr/local/bin/envcheck"
