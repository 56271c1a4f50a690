"""A resolution as people read it: the answer first, then why, then what else could run. 80 columns."""

from __future__ import annotations

import os
import textwrap
from typing import Final

import click

from envcheck.matrix.resolve import Resolution

_WIDTH: Final = 80
_COLOURS: Final = {"ok": "green", "driver-ok-via-minor-compat": "green", "forward-compat-required": "yellow"}


def show(answer: Resolution, *, everything: bool = False, quiet: bool = False) -> None:
    """Print it; `everything` adds a table of every cell, `quiet` leaves only the answer itself."""
    for line in _head(answer):
        click.echo(line)
    if quiet:
        return
    _section("Why", answer.reasons)
    _section("Or", [f"{row.change}\n{row.cell} ({row.verdict})" for row in answer.alternatives])
    read = [f"read off this node: {name} {value}" for name, value in answer.read_here.items()]
    weak = [] if answer.verified else ["rests on a fact that only one weak source tells (verified: false)"]
    _section("Note", [*answer.notes, *read, *weak])
    if everything:
        _table(answer)


def _head(answer: Resolution) -> list[str]:
    verdict = _style(answer.verdict, _COLOURS.get(answer.verdict, "red"))
    if answer.cell is None:
        return [f"nothing that was asked for can run: {verdict}"]
    return [f"{_style(answer.cell)}: {verdict}", *(f"  {line}" for line in _pip(answer))]


def _pip(answer: Resolution) -> list[str]:
    torch, *companions = answer.install
    variant = answer.index.rpartition("/")[2]
    if not answer.index:
        return [f"pip install {' '.join(answer.install)}", f"(the default index has this wheel for {answer.arch})"]
    words = " ".join([f"{torch}+{variant}" if answer.arch == "x86_64" else torch, *companions])
    return [
        f"pip install {words} \\",
        f"    --index-url $PYTORCH_INDEX/{answer.index}",
        "(PYTORCH_INDEX: the PyTorch wheel index, or your mirror of it), or without it:",
        f"uv pip install {' '.join(answer.install)} \\",
        f"    --torch-backend={variant}",
    ]


def _section(title: str, items: list[str]) -> None:
    if not items:
        return
    click.echo()
    click.echo(_style(title))
    for item in items:
        start = "  - "
        for line in item.split("\n"):
            click.echo(
                textwrap.fill(
                    line,
                    _WIDTH,
                    initial_indent=start,
                    subsequent_indent="    ",
                    break_long_words=False,
                    break_on_hyphens=False,
                )
            )
            start = "    "


def _table(answer: Resolution) -> None:
    from rich.table import Table

    from envcheck.cli._strict import console

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("cell", no_wrap=True)
    table.add_column("verdict")
    for row in answer.ranked:
        table.add_row(row.cell, row.verdict if row.verified else f"{row.verdict} (weak)")
    for gone in answer.rejected:
        table.add_row(f"torch{gone.torch}-{gone.variant}", gone.verdict)
    click.echo()
    console(highlight=False).print(table)


def _style(text: str, colour: str | None = None) -> str:
    return text if os.environ.get("NO_COLOR") else click.style(text, fg=colour, bold=True)
