"""`envcheck report`, and `envcheck schema`: the JSON Schema of what a file or a command's JSON holds."""

import importlib
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Literal

import click
import msgspec

from envcheck import safe_files
from envcheck.cli import Settings, report_output
from envcheck.cli.options import FILE, Argument, ChecksDirectory, FiniteRange, JsonOption, Option, Options, command_with
from envcheck.cli.shared.process import console, names, print_answer
from envcheck.counting import printable
from envcheck.errors import all_of
from envcheck.matrix.file.load import load as load_matrix
from envcheck.reports import compare as comparison
from envcheck.reports import formats, terminal
from envcheck.reports import redact as redaction
from envcheck.reports.model import encode, load, rejudge

# The loader reports a missing file, with what to do.
_Report = Annotated[Path, Argument(type=FILE)]
_Output = Annotated[Path | None, Option("-o", "--output", "Write this file [default: print it].", type=FILE)]


class ReportShowOptions(Options):
    file: _Report


class ReportConvertOptions(ReportShowOptions):
    format_name: Annotated[str, Option("--format", "Write this format.", type=click.Choice(formats.names()))]
    output: _Output = None


class ReportCompareOptions(JsonOption):
    before: _Report
    after: _Report
    threshold: Annotated[float | None, Option("Least change that counts [0.05, CPU: 0.3].", type=FiniteRange(0, 1))] = (
        None
    )


class ReportRedactOptions(ReportShowOptions):
    output: _Output = None
    key: Annotated[str, Option("Same pseudonyms in every report of this key; keep it secret.", metavar="TEXT")] = ""


class ReportJudgeOptions(ReportShowOptions, JsonOption):
    checks: ChecksDirectory = None
    output: Annotated[Path | None, Option("-o", "--output", "Write the new report here.", type=FILE)] = None


@command_with(ReportShowOptions)
def show(options: ReportShowOptions, settings: Settings) -> None:
    """Print a report as `envcheck run` printed it."""
    terminal.show(load(options.file), console(width=terminal.width(), highlight=False), verbose=settings.verbose)


@command_with(ReportConvertOptions)
def convert(options: ReportConvertOptions, _settings: Settings) -> None:
    """Write a report in another format."""
    text = formats.named(options.format_name).render(load(options.file))
    report_output.apart(FILE=options.file, output=options.output)
    _deliver(text.encode(), options.output)


def _deliver(content: bytes, output: Path | None) -> None:
    if output is None:
        click.echo(content, nl=False)
    else:
        safe_files.replace(output, content)


@command_with(ReportCompareOptions)
def compare(options: ReportCompareOptions, _settings: Settings) -> int:
    """Say what changed between two runs, and what got slower."""
    before, after = all_of(partial(load, options.before), partial(load, options.after))
    found = comparison.compare(before, after, options.threshold)
    print_answer(found, comparison.lines(found), as_json=options.as_json)
    return found.exit_code


@command_with(ReportRedactOptions)
def redact(options: ReportRedactOptions, _settings: Settings) -> None:
    """Replace the names in a report: hosts, users, UUIDs, paths."""
    names(options.key)  # An error's line names no path either.
    report_output.apart(FILE=options.file, output=options.output)
    _deliver(encode(redaction.redact(load(options.file), options.key)), options.output)


@command_with(ReportJudgeOptions)
def judge(options: ReportJudgeOptions, settings: Settings) -> int:
    """Apply today's rules and limits to an old report."""
    report_output.apart(FILE=options.file, output=options.output)
    rejudged = rejudge(load(options.file), load_matrix(settings.matrix) if settings.matrix else None, options.checks)
    if options.as_json:
        click.echo(encode(rejudged.report), nl=False)
    elif settings.quiet:
        click.echo(printable(rejudged.report.verdict.sentence))
    else:
        for identity, before, after in rejudged.changed:
            click.echo(printable(f"{identity}: {before} then, {after} now"))
        if rejudged.unknown:
            click.echo(printable(f"unchanged, because no check has this name today: {', '.join(rejudged.unknown)}"))
        out = console(width=terminal.width(), highlight=False)
        terminal.show(rejudged.report, out, verbose=settings.verbose)
    code = rejudged.report.verdict.exit_code
    if options.output is not None:
        report_output.deliver(options.output, encode(rejudged.report), code)
    return code


# The struct of each document.
_STRUCTS: Final = {
    "matrix": "envcheck.matrix.facts.model:Matrix",
    "extensions": "envcheck.matrix.extensions.file:Extensions",
    "report": "envcheck.reports.model:RunReport",
    "fleet": "envcheck.fleet.summary:FleetReport",
    "fleet-plan": "envcheck.fleet.cover:FleetPlan",
}


class SchemaOptions(Options):
    name: Annotated[Literal["matrix", "extensions", "report", "fleet", "fleet-plan"], Argument()]


@command_with(SchemaOptions)
def schema(options: SchemaOptions, _settings: Settings) -> None:
    """Print the JSON Schema of matrix.yaml, extensions.yaml, a report, a fleet's report or plan."""
    click.echo(schema_of(options.name), nl=False)


def schema_of(name: str) -> str:
    """Return the JSON Schema of a document."""
    module, _, struct = _STRUCTS[name].partition(":")
    kind = getattr(importlib.import_module(module), struct)
    document = {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(kind)}
    text = msgspec.json.format(msgspec.json.encode(document, order="sorted"), indent=2).decode()
    # In the regular expressions of a schema $ is the end of the text, as \\Z is in Python's, which schemas do not know.
    return text.replace("\\\\Z", "$") + "\n"
