"""`envcheck checks`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envcheck.cli import _complete

if TYPE_CHECKING:
    from envcheck.runner.discover import Found


@click.command(short_help="What each check promises, needs and costs.")
@click.argument("check", metavar="[ID]", required=False, shell_complete=_complete.checks)
@click.option(
    "--checks", type=click.Path(path_type=Path, exists=True, file_okay=False), help="Your own node/ and env/."
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(check: str | None, checks: Path | None, *, as_json: bool) -> None:
    """List every check, or say all about one.

    \b
    envcheck checks
    envcheck checks ddp
    """
    import json

    from envcheck.runner.discover import discover
    from envcheck.runner.plan import select

    found = discover(checks)
    if check is not None:
        found = select(found, "full", only=[check])
    if as_json:
        click.echo(json.dumps([_facts(f) for f in found], indent=2))
    elif check is not None:
        click.echo(_all_about(found[0]))
    else:
        _table(found)


def _table(found: list[Found]) -> None:
    from rich.console import Console
    from rich.table import Table

    from envcheck.reports.terminal import WIDTH

    table = Table("check", "level", "needs", "takes", "promise", box=None, pad_edge=False)
    for f in found:
        table.add_row(f.id, f.check.level, _needs(f), f"{f.check.seconds:g} s", f.check.promise)
    Console(width=WIDTH, highlight=False).print(table)


def _all_about(f: Found) -> str:
    head = f"{f.id} ({f.kind}, level {f.check.level}, {f.check.seconds:g} s, at most {f.check.timeout:g} s)"
    needs = f"needs: {_needs(f)}" + (f"; signals {', '.join(f.check.signals)}" if f.check.signals else "")
    facts = [_wrapped(told, indent="  ") for told in (head, f"promises: {f.check.promise}", needs)]
    return "\n".join(facts) + "\n\n" + "\n\n".join(_wrapped(told) for told in f.doc.split("\n\n"))


def _wrapped(text: str, indent: str = "") -> str:
    import textwrap

    from envcheck.reports.terminal import WIDTH

    # An option, a repository or a path that is cut at its hyphen cannot be copied.
    return textwrap.fill(" ".join(text.split()), WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def _needs(f: Found) -> str:
    return f"{f.check.gpus} GPU{'s' * (f.check.gpus > 1)}" if f.check.gpus else "-"


def _facts(f: Found) -> dict[str, Any]:
    import dataclasses

    return {"id": f.id, "kind": f.kind, **dataclasses.asdict(f.check), "doc": f.doc}
