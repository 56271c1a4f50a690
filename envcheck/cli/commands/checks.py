"""`envcheck checks`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from envcheck.checks import LEVELS
from envcheck.cli.shared import completion, messages
from envcheck.cli.shared.typed_options import takes
from envcheck.counting import counted
from envcheck.errors import ConfigError

if TYPE_CHECKING:
    from envcheck.runner.planning import CheckModule

_WIDTH: Final = 80
_BOUNDS: Final = ("fail", "warn")
_MISSED: Final = {"at least": "below", "at most": "above", "equal": "unless"}


class ChecksOptions(NamedTuple):
    """The options of `envcheck checks`."""

    check: str | None
    level: str | None
    checks: Path | None
    format_name: str
    as_json: bool


@click.command(short_help="What each check promises, needs and costs.")
@click.argument("check", metavar="[ID]", required=False, shell_complete=completion.checks)
@click.option("--level", type=click.Choice(LEVELS), help="Only what this level runs, the levels before it included.")
@click.option(
    "--checks",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Directory with your own checks (node/*.py, env/*.py).",
)
@click.option(
    "--format",
    "format_name",
    type=click.Choice(["text", "markdown"]),
    default="text",
    show_default=True,
    help="markdown: the table of docs/checks.md.",
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON, limits and all.")
@takes(ChecksOptions)
def command(options: ChecksOptions) -> int:
    """List every check, or describe one: promise, needs, cost, limits.

    A file of --checks that is not a check is named on standard error, and the others are listed.

    \b
    envcheck checks
    envcheck checks --level quick
    envcheck checks gemm-throughput

    Exit 0: listed; 2: a file of --checks is not a check, or wrong usage.
    """
    import json

    from envcheck.reports import check_catalogue
    from envcheck.runner.planning import discover, select

    if options.check is not None and options.level is not None:
        message = f"--level lists the checks of a level, and {options.check} is one check"
        raise ConfigError(message, fix="leave one of them out")
    check, errors = options.check, list[ConfigError]()

    def hear(error: ConfigError) -> None:
        messages.say(str(error))
        errors.append(error)

    modules = select(discover(options.checks, hear), options.level or LEVELS[-1], only=[check] if check else [])
    if options.as_json:
        click.echo(json.dumps([_facts(f) for f in modules], indent=2))
    elif options.format_name == "markdown":
        click.echo(check_catalogue.markdown(modules), nl=False)
    elif check is not None:
        click.echo("\n".join(_all_about(modules[0])))
    else:
        _table(modules)
    return ConfigError.exit_code if errors else 0


def _table(modules: list[CheckModule]) -> None:
    from envcheck.reports import check_catalogue

    widest = max(len(f.id) for f in modules)
    for level, checks in check_catalogue.levels(modules).items():
        count, cost = len(checks), sum(f.check.seconds for f in checks)
        head = f"{level}: {counted(count, 'check')}, {_cost(cost)}: {check_catalogue.FOR[level]}"
        click.echo(_wrapped(head, "  "))
        for f in checks:
            start = f"  {f.id:<{widest}}  {check_catalogue.runs_on(f):<8}  {f'{f.check.seconds:g} s':<6}  "
            click.echo(start + _wrapped(f.check.promise, " " * len(start), len(start)))
        click.echo()
    for line in _legend(modules):
        click.echo(line)


def _legend(modules: list[CheckModule]) -> Iterator[str]:
    from envcheck.reports import check_catalogue

    for name in dict.fromkeys(check_catalogue.runs_on(f) for f in modules):
        yield f"{name:<8}  {check_catalogue.RUNS[name]}"
    run_on_gpu = sum(bool(check_catalogue.met(f.id)) for f in modules)
    yield f"{run_on_gpu} of {len(modules)} have met a real GPU; `envcheck checks ID` says all about one."


def _cost(seconds: float) -> str:
    from envcheck.reports.phrases import duration

    return "under a second" if seconds < 1 else f"about {duration(seconds)}"


def _all_about(f: CheckModule) -> Iterator[str]:
    from envcheck.reports import check_catalogue

    runs = check_catalogue.runs_on(f)
    yield from (f"{f.id}: level {f.check.level}", f"  promises  {_wrapped(f.check.promise, ' ' * 12, 12)}")
    yield f"  runs on   {runs}: {check_catalogue.RUNS[runs]}"
    if f.check.gpus > 1:
        yield f"  needs     {counted(f.check.gpus, 'GPU')}"
    if f.check.signals:
        yield f"  signals   {_wrapped(', '.join(f.check.signals), ' ' * 12, 12)}"
    second_measurement = "; a value that falls short is measured again" if f.check.performance else ""
    cpu = "" if f.check.cpu_seconds is None else f" ({f.check.cpu_seconds:g} s on a CPU)"
    takes = f"{f.check.seconds:g} s{cpu}, ended after {f.check.timeout:g} s{second_measurement}"
    yield f"  takes     {_wrapped(takes, ' ' * 12, 12)}"
    models = [f"{row['gpu']} on {row['date']} ({row['report']})" for row in check_catalogue.met(f.id)]
    yield f"  met       {'; '.join(models) or 'no real GPU yet'}"
    for part in f.doc.split("\n\n"):
        yield from ("", part if _is_block(part) else _wrapped(part))
    limits = [*_rows(f), *_constants(f)]
    if limits:
        yield from ("", "limits", *limits)


def _is_block(part: str) -> bool:
    """Tell code and tables, which keep their lines, from prose."""
    return all(line.startswith("  ") for line in part.splitlines())


def _rows(f: CheckModule) -> Iterator[str]:
    from envcheck.checks import limits
    from envcheck.reports import check_catalogue, phrases

    for row in check_catalogue.rows(f):
        beyond = _MISSED[row.get("kind", "at least")]
        verbs = ["warn" if word == "fail" and not limits.verified(row) else word for word in _BOUNDS]
        # Where a limit that no second source confirms only warns, the stricter one alone decides.
        effective = {verb: row[word] for verb, word in zip(verbs, _BOUNDS, strict=True) if word in row}
        bounds = [f"{verb}s {beyond} {phrases.quantity(value, row['unit'])}" for verb, value in effective.items()]
        yield _wrapped(f"  {_where(row, f.id)}{', '.join(bounds)}", "    ")
        yield _wrapped(f"    {row['source']} ({row['date']})", "    ")


def _where(row: dict[str, Any], identity: str) -> str:
    models = row.get("gpu", [])
    count = [f"{row['gpus']} x"] if "gpus" in row else []
    link = row.get("transport", [])
    conditions = ["over " + "/".join([link] if isinstance(link, str) else link)] if link else []
    conditions += [f"over 16 lanes of PCIe generation {row['pcie']}"] if "pcie" in row else []
    named = [] if row["check"] == identity else [row["check"]]
    condition = " ".join(
        [*named, *count, " or ".join([models] if isinstance(models, str) else models), *conditions]
    ).strip()
    return f"{condition}: " if condition else ""


def _constants(f: CheckModule) -> Iterator[str]:
    from envcheck.reports import check_catalogue, phrases

    for limit in check_catalogue.constants(f):
        yield _wrapped(f"  {limit.kind} {phrases.quantity(limit.value, limit.unit)}", "    ")
        yield _wrapped(f"    {limit.source}", "    ")


def _wrapped(text: str, indent: str = "", used: int = 0) -> str:
    """Return the text at 80 columns; `used` columns of the first line are taken already."""
    import textwrap

    lead = len(text) - len(text.lstrip())
    # An option, a repository or a path that is cut at its hyphen cannot be copied.
    filled = textwrap.fill(
        " ".join(text.split()),
        _WIDTH,
        initial_indent=" " * max(lead, used),
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
    return filled[used:]


def _facts(f: CheckModule) -> dict[str, Any]:
    import dataclasses

    from envcheck.reports import check_catalogue

    catalogue_facts = {"runs_on": check_catalogue.runs_on(f), "doc": f.doc, "met": check_catalogue.met(f.id)}
    constants = [dataclasses.asdict(limit) for limit in check_catalogue.constants(f)]
    return {
        "id": f.id,
        "kind": f.kind,
        **dataclasses.asdict(f.check),
        **catalogue_facts,
        "limits": check_catalogue.rows(f) + constants,
    }
