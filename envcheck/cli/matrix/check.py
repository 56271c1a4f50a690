"""`envcheck matrix check`: what is wrong with the facts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import click
import msgspec

from envcheck.cli import Settings
from envcheck.cli.options import Option, command_with
from envcheck.counting import counted
from envcheck.data import data_path
from envcheck.matrix.extensions import file as extension_file
from envcheck.matrix.extensions import file as extension_lint
from envcheck.matrix.extensions.model import Extensions
from envcheck.matrix.facts.model import Matrix
from envcheck.matrix.file.canonical import dump
from envcheck.matrix.file.lint import Problem, lint
from envcheck.matrix.file.load import load


@dataclass(frozen=True, kw_only=True)
class MatrixCheckOptions:
    as_json: Annotated[bool, Option("--json", "Print the findings as JSON.")] = False


@command_with(MatrixCheckOptions, short_help="Lint the facts.")
def command(options: MatrixCheckOptions, settings: Settings) -> int:
    """Lint the facts: sources, floors, orders, companions, bases and images, and the file's form.

    Exit status: 0 nothing found, 1 findings, 2 the file cannot be read.

    \b
    envcheck matrix check
    envcheck --matrix my.yaml matrix check
    """
    matrix = load(settings.matrix)
    findings = [*lint(matrix), *_form(settings.matrix or data_path("matrix.yaml"), dump(matrix))]
    extensions = None
    if settings.matrix is None:
        extensions = extension_file.load()
        findings += extension_lint.lint(extensions, matrix)
        findings += _form(extension_file.SHIPPED, extension_file.dump(extensions))
    if options.as_json:
        click.echo(msgspec.json.format(msgspec.json.encode([row._asdict() for row in findings])).decode())
    else:
        for where, problem in findings:
            click.echo(f"{where}: {problem}")
        sound = f"nothing wrong with {_extent(matrix, extensions)}"
        click.echo(counted(len(findings), "finding") if findings else sound)
    return 1 if findings else 0


def _form(file: Path, canonical: str) -> list[Problem]:
    """Find the first line that another order, quotes or comment would have."""
    lines, expected = file.read_text().splitlines(), canonical.splitlines()
    if lines == expected:
        return []
    at = next((at for at, pair in enumerate(zip(lines, expected, strict=False)) if pair[0] != pair[1]), len(expected))
    line = expected[at].strip() if at < len(expected) else "nothing"
    return [Problem(f"{file.name}:{at + 1}", f"is not in its canonical form: write {line!r} there")]


def _extent(matrix: Matrix, extensions: Extensions | None) -> str:
    text = (
        f"{counted(len(matrix.torch), 'torch release')}, {counted(len(matrix.gpus), 'GPU')}, "
        f"{len(matrix.drivers)} driver branches"
    )
    if extensions is None:
        return text
    releases = sum(len(row.releases) for row in extensions.extensions)
    return f"{text}, {counted(releases, 'release')} of {counted(len(extensions.extensions), 'extension')}"
