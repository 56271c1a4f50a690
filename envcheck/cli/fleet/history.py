"""`envcheck fleet history`: what happened to a node or a GPU before."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from envcheck.cli.shared.typed_options import takes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from envcheck.fleet.history import FleetHistory, PastRun

_SHOWN: Final = 20


class FleetHistoryOptions(NamedTuple):
    """The options of `envcheck fleet history`."""

    who: str
    db: Path
    as_json: bool


@click.command("history")
@click.argument("who", metavar="NODE|GPU-UUID")
@click.option(
    "--db",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("envcheck-fleet.db"),
    show_default=True,
    help="The database that `envcheck fleet report --db` wrote.",
)
@click.option("--json", "as_json", is_flag=True, help="Print envcheck/fleet-history/1.")
@takes(FleetHistoryOptions)
def command(options: FleetHistoryOptions) -> None:
    """Say how often a node or a GPU failed, and why.

    A GPU is identified by its UUID, whichever node it was in; the beginning of the UUID is enough. Only findings
    that name it count.

    \b
    envcheck fleet history n17 --db fleet.db
    envcheck fleet history GPU-5a1c --db fleet.db

    Exit 0: printed; 2: the database has nothing about it, or wrong usage.
    """
    import textwrap

    import msgspec

    from envcheck.errors import ConfigError
    from envcheck.fleet.database import opened
    from envcheck.fleet.history import history
    from envcheck.fleet.terminal import WIDTH
    from envcheck.printable import printable

    if not options.db.exists():
        message = f"{options.db}: no such database"
        raise ConfigError(message, fix="name the one that `envcheck fleet report DIR --db FILE` wrote")
    with opened(options.db) as database:
        past = history(database, options.who)
    if options.as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(past), indent=1))
        return
    for line in _lines(past):
        for part in textwrap.wrap(printable(line), WIDTH, subsequent_indent="    ", break_on_hyphens=False):
            click.echo(part)


def _lines(past: FleetHistory) -> Iterator[str]:
    from envcheck.counting import counted

    often = ", ".join(f"{check} {counted(times, 'time')}" for check, times in past.checks.items())
    yield f"{past.who}: failed in {past.failed} of {counted(len(past.runs), 'run')}{f': {often}' if often else ''}"
    where = f"on {', '.join(past.nodes)}" if past.gpus == [past.who] else f"GPUs: {', '.join(past.gpus) or 'none'}"
    yield f"  {where}"
    for run in past.runs[:_SHOWN]:
        yield f"{run.at or 'at an unknown time':25}  {run.status:5}  {_findings_of(run)}".rstrip()
    if len(past.runs) > _SHOWN:
        yield f"and {counted(len(past.runs) - _SHOWN, 'older run')}: see --json"


def _findings_of(run: PastRun) -> str:
    findings = [f for f in run.findings if f.status == run.status]
    return ", ".join(f"{f.check} [{f.code}] {f.culprit}".strip() for f in findings) or run.why or run.driver
