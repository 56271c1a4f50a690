"""`envcheck demo`: the main job for this machine, end to end."""

import sys
from typing import Annotated, Final, Literal

import click

from envcheck.cli import Settings, report_output
from envcheck.cli.building.cell_to_build import best_cell
from envcheck.cli.commands import build, run
from envcheck.cli.commands.resolve import active_python, fill, show
from envcheck.cli.options import Option, Options, command_with
from envcheck.cli.report_output import Output, OutputType
from envcheck.data import state_path
from envcheck.images import engines
from envcheck.images.spec import load_spec
from envcheck.images.tags import REPOSITORY
from envcheck.matrix.facts.model import Cell, Matrix
from envcheck.matrix.file.load import load
from envcheck.matrix.resolver.resolve import Query, Resolution, resolve
from envcheck.mirrors.profiles.load import AUTO
from envcheck.mirrors.profiles.load import load as load_profile
from envcheck.node import collect

_REPORT: Final = Output(report_output.DEFAULT)


class DemoOptions(Options):
    mirror: Annotated[str, Option("none, host, or a profile's YAML file.", metavar="PROFILE")] = "host"
    engine: Annotated[
        Literal["auto", "docker", "podman", "venv"], Option("auto: docker if one answers, else podman, else venv.")
    ] = "auto"
    output: Annotated[Output, Option("-o", "--output", "The report.", type=OutputType())] = _REPORT
    dry_run: Annotated[bool, Option("Stop at the cell that would be built; its name is the last line.")] = False


@command_with(DemoOptions)
def command(options: DemoOptions, settings: Settings) -> None:
    """Resolve for this machine, build the best published cell, validate it."""
    ctx = click.get_current_context()
    report_output.leave_to_the_first(quiet=settings.quiet)
    engine = engines.find(options.engine)
    _step(1, "resolve: what can run on this machine?")
    matrix = load(settings.matrix)
    answer = _resolve(matrix, quiet=settings.quiet)
    best = best_cell(matrix, [answer], engine, None if options.mirror == AUTO else load_profile(options.mirror))
    cell = best.cell
    if options.dry_run:
        click.echo(f"\n{cell}")
        return
    _step(2, f"build: {cell} with {engine}, through mirror profile {options.mirror}")
    click.echo(best.why or "the newest published cell that is legal here (`envcheck images` lists them)")
    ctx.invoke(build.command, selector=str(cell), mirror=options.mirror, engine=engine)
    ctx.meta["envcheck.resolution"] = (
        f"{_answer_line(answer, cell)}; built by {engine} through mirror profile {options.mirror}"
    )
    _step(3, "validate: is it what it says, and does it compute?")
    output = options.output
    page = output if output.directory else Output(output.path.with_suffix(".html"))
    if engine == "venv":
        ctx.invoke(run.command, python=str(state_path("venvs", str(cell))), output=output, html=page)
    else:
        image = engines.local_name(engine, f"{REPOSITORY}:{load_spec(matrix, cell).tag}")
        ctx.invoke(run.command, image=image, output=output, html=page)


def _step(number: int, title: str) -> None:
    click.echo(click.style(f"\n[{number}/3] {title}", bold=True))
    sys.stdout.flush()


def _resolve(matrix: Matrix, *, quiet: bool) -> Resolution:
    """Print what `envcheck resolve` would, and return the answer for any Python: the image brings its own."""
    query, read, notes = fill(matrix, Query(), collect.identify(), active_python())
    show(resolve(matrix, query, read_here=read, notes=notes), quiet=quiet)
    return resolve(matrix, query.replace(python=None), notes=notes)


def _answer_line(answer: Resolution, cell: Cell) -> str:
    verdict = next((row.verdict for row in answer.ranked if row.cell == str(cell)), "its CUDA build on a CPU")
    machine = [*answer.query.gpus, *answer.query.cc] or ["no NVIDIA GPU"]
    driver = f", driver {answer.query.driver}" if answer.query.driver else ""
    return f"{cell}: {verdict} ({', '.join(machine)}{driver}, {answer.arch})"
