"""`envcheck matrix`: show, lint and refresh the facts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from envcheck.cli.matrix import refresh, wheel
from envcheck.cli.shared.parameter_types import ARCHS
from envcheck.cli.shared.typed_options import takes
from envcheck.counting import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.table import Table

    from envcheck.cli import Settings
    from envcheck.errors import NothingLegalError
    from envcheck.matrix.extensions.model import Extensions
    from envcheck.matrix.facts.model import Matrix
    from envcheck.matrix.file.check_online import Step
    from envcheck.matrix.file.lint import Problem
    from envcheck.matrix.file.table import TableRow
    from envcheck.matrix.resolver.query import Query


class MatrixShowOptions(NamedTuple):
    """The options of `envcheck matrix show`."""

    torch: str | None
    variant: str | None
    python: str | None
    gpus: tuple[str, ...]
    driver: str | None
    cc: tuple[str, ...]
    arch: str | None
    only_gpus: bool
    only_drivers: bool
    as_json: bool

    def query(self) -> Query:
        """Return the combination that the rows must meet."""
        from envcheck.matrix.resolver.query import Query

        return Query(
            torch=self.torch,
            variant=self.variant,
            python=self.python,
            gpus=[*self.gpus],
            driver=self.driver,
            cc=[*self.cc],
            arch=ARCHS[self.arch] if self.arch else None,
        )


class MatrixCheckOptions(NamedTuple):
    """The options of `envcheck matrix check`."""

    online: bool
    as_json: bool


@click.group()
def command() -> None:
    """Show, lint and refresh the facts that every answer is based on.

    \b
    envcheck matrix show --torch 2.8
    envcheck matrix check
    """


@command.command(short_help="Show the facts, filtered.")
@click.option("--torch", metavar="REQ", help='A release or a requirement: 2.8, 2.8.0, ">=2.6,<2.9".')
@click.option("--variant", metavar="cuNNN|cpu", help="One variant, e.g. cu128.")
@click.option("--python", metavar="X.Y", help="Only wheels for this Python.")
@click.option("--gpu", "gpus", multiple=True, metavar="NAME", help="Judge for this GPU.")
@click.option("--driver", metavar="VERSION", help="Judge for this driver.")
@click.option("--cc", multiple=True, metavar="X.Y", help="Judge for this compute capability.")
@click.option("--arch", type=click.Choice(list(ARCHS)), help="Host architecture.")
@click.option("--gpus", "only_gpus", is_flag=True, help="List the GPUs instead.")
@click.option("--drivers", "only_drivers", is_flag=True, help="List the driver branches and CUDA minors instead.")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON.")
@click.pass_obj
@takes(MatrixShowOptions)
def show(options: MatrixShowOptions, settings: Settings) -> None:
    """Show the facts, filtered. Exit status: 1 when no row is left, 2 on bad input.

    \b
    envcheck matrix show --torch 2.8
    envcheck matrix show --gpu V100 --driver 570.124.06
    envcheck matrix show --gpus
    """
    from envcheck.matrix.file.load import load
    from envcheck.matrix.file.table import rows
    from envcheck.matrix.resolver.query import normalized

    matrix = load(settings.matrix)
    as_json = options.as_json
    if options.only_gpus:
        _print(matrix.gpus, as_json=as_json, table=lambda: _gpu_table(matrix))
    elif options.only_drivers:
        _print({"drivers": matrix.drivers, "cuda": matrix.cuda}, as_json=as_json, table=lambda: _driver_table(matrix))
    else:
        matching = rows(matrix, normalized(options.query()))
        if as_json or matching:
            _print(matching, as_json=as_json, table=lambda: _row_table(matching))
        if not matching:
            raise _no_row(options)
        if not as_json and any(row.pypi for row in matching):
            click.echo("* what the default Python index has")


def _no_row(options: MatrixShowOptions) -> NothingLegalError:
    from envcheck.errors import NothingLegalError

    axes = options._replace(only_gpus=False, only_drivers=False, as_json=False)._asdict()
    filters = {name: value for name, value in axes.items() if value}
    words = " ".join(
        f"--{name.removesuffix('s')} {item}"
        for name, value in filters.items()
        for item in (value if isinstance(value, tuple) else [value])
    )
    message = f"no row of the matrix meets {words}"
    return NothingLegalError(message, fix="ask for less; `envcheck matrix show` lists them all")


def _print(value: object, *, as_json: bool, table: Callable[[], Table]) -> None:
    if as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(value)).decode())
        return
    from envcheck.cli.shared.streams import console

    console(highlight=False).print(table())


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=column != columns[-1])
    return table


def _row_table(table_rows: list[TableRow]) -> Table:
    judged = any(row.verdict for row in table_rows)
    table = _table("torch", "variant", "Python", "verdict" if judged else "GPU code")
    for row in table_rows:
        code = " ".join(["unknown"] if row.sass is None else [*row.sass, *(f"{ptx}+PTX" for ptx in row.ptx)])
        weak = "" if row.verified else " (weak)"
        name = f"{row.variant}{' *' if row.pypi else ''}"
        table.add_row(row.torch, name, _span(row.python), f"{row.verdict if judged else code}{weak}")
    return table


def _span(pythons: list[str]) -> str:
    plain = [python for python in pythons if not python.endswith("t")]
    free = [python for python in pythons if python.endswith("t")]
    ends = plain[:1] + (plain[-1:] if len(plain) > 1 else [])
    return " ".join([" - ".join(ends), *free])


def _gpu_table(matrix: Matrix) -> Table:
    table = _table("GPU", "cc", "host", "centre", "drivers from")
    for gpu in matrix.gpus:
        low = gpu.min_driver or "unknown"
        weak = "" if gpu.verified and gpu.driver_verified else " (weak)"
        table.add_row(gpu.name, gpu.cc, gpu.host_arch, "yes" if gpu.datacenter else "no", f"{low}{weak}")
    return table


def _driver_table(matrix: Matrix) -> Table:
    native = {minor.cuda: minor for minor in matrix.cuda.minors}
    table = _table("branch", "CUDA", "first driver", "kind", "until", "drops")
    for row in matrix.drivers:
        minor = native.get(row.cuda)
        first = minor.native_driver if minor else ""
        drops = ", ".join(row.drops)
        table.add_row(f"R{row.branch}", row.cuda, first, row.kind or "", row.end_of_life or "", drops)
    return table


@command.command(short_help="Lint the facts; with --online, query the index too.")
@click.option("--online", is_flag=True, help="Also query the package index, through uv as it is configured here.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.pass_obj
@takes(MatrixCheckOptions)
def check(options: MatrixCheckOptions, settings: Settings) -> None:
    """Lint the facts: sources, floors, orders, companions, bases and images, and the file's format.

    --online takes minutes: it queries every release, and lists what it queried and what it did not.

    Exit status: 0 nothing found, 1 findings, 2 the file cannot be read, 3 the index cannot be reached.

    \b
    envcheck matrix check
    envcheck matrix check --online
    """
    from envcheck.matrix.file.lint import lint
    from envcheck.matrix.file.load import load

    matrix = load(settings.matrix)
    findings = [*lint(matrix), *_form(settings.matrix, matrix)]
    extensions = None if settings.matrix else _extensions(matrix, findings)
    questions = _ask(matrix, findings, quiet=settings.quiet) if options.online else []
    if options.as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode([row._asdict() for row in findings])).decode())
    else:
        _tell(findings, matrix, extensions)
    for line in questions:
        click.echo(line, err=options.as_json)
    sys.exit(1 if findings else 0)


def _ask(matrix: Matrix, findings: list[Problem], *, quiet: bool) -> list[str]:
    """Add what the index contradicts, and return what was asked and what was not."""
    from envcheck.matrix.file.check_online import PARALLEL_QUESTIONS, check_online, scope

    online = scope(matrix)
    if not quiet:
        start = (
            f"asking the default Python index through uv: {online.questions} questions, {PARALLEL_QUESTIONS} at a time"
        )
        click.echo(start, err=True)
    findings += check_online(matrix, progress=(lambda _: None) if quiet else _progress)
    extent = f"the x86_64 wheels of {online.releases} releases (oldest and newest Python, the newest one's CUDA)"
    return [
        f"the default Python index, through uv, answered {online.questions} questions on {extent}",
        *(f"not asked: {left}" for left in online.left_out),
    ]


def _form(path: Path | None, matrix: Matrix) -> list[Problem]:
    from envcheck.data import data_path
    from envcheck.matrix.file.canonical import dump
    from envcheck.matrix.file.lint import Problem

    file = path or data_path("matrix.yaml")
    if file.read_text() == dump(matrix):
        return []
    return [Problem(file.name, "is not in its canonical form: run `envcheck matrix format`")]


def _extensions(matrix: Matrix, findings: list[Problem]) -> Extensions:
    """Add what is wrong with the shipped extensions.yaml, and return it."""
    from envcheck.matrix.extensions import file
    from envcheck.matrix.extensions.lint import lint
    from envcheck.matrix.file.lint import Problem

    extensions = file.load()
    findings += lint(extensions, matrix)
    if file.SHIPPED.read_text() != file.dump(extensions):
        findings.append(Problem(file.SHIPPED.name, "is not in its canonical form: run `envcheck matrix format`"))
    return extensions


def _progress(step: Step) -> None:
    """Overwrite one line of a terminal; elsewhere write one line a release."""
    text = f"{step.done} of {step.total} answered: torch {step.torch}"
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{text}", nl=False, err=True)
    elif step.release_done:
        click.echo(text, err=True)


def _tell(findings: list[Problem], matrix: Matrix, extensions: Extensions | None) -> None:
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", nl=False, err=True)
    for where, problem in findings:
        click.echo(f"{where}: {problem}")
    counts = (
        f"{counted(len(matrix.torch), 'torch release')}, {counted(len(matrix.gpus), 'GPU')}, "
        f"{len(matrix.drivers)} driver branches"
    )
    if extensions is not None:
        releases = sum(len(row.releases) for row in extensions.extensions)
        counts += f", {counted(releases, 'release')} of {counted(len(extensions.extensions), 'extension')}"
    total = counted(len(findings), "finding")
    click.echo(total if findings else f"nothing wrong with {counts}")


@command.command(short_help="Print the JSON Schema of matrix.yaml.")
def schema() -> None:
    """Print the JSON Schema of matrix.yaml, for editors: envcheck matrix schema > matrix.schema.json."""
    from envcheck.matrix.file.canonical import schema as text

    click.echo(text(), nl=False)


@command.command(name="format", short_help="Write the facts in their canonical form.")
@click.pass_obj
def rewrite(settings: Settings) -> None:
    """Write matrix.yaml, and without --matrix extensions.yaml, in the canonical form.

    \b
    envcheck --matrix my.yaml matrix format
    """
    from envcheck.data import data_path
    from envcheck.matrix.extensions import file as extensions
    from envcheck.matrix.file.canonical import dump
    from envcheck.matrix.file.load import load

    _rewrite(settings.matrix or data_path("matrix.yaml"), dump(load(settings.matrix)))
    if settings.matrix is None:
        _rewrite(extensions.SHIPPED, extensions.dump(extensions.load()))


def _rewrite(file: Path, text: str) -> None:
    from envcheck import safe_files

    changed = file.read_text() != text
    if changed:
        safe_files.replace(file, text.encode())
    click.echo(f"{file.name}: {'rewritten' if changed else 'already canonical'}")


command.add_command(refresh.command)
command.add_command(wheel.command, "wheel")
