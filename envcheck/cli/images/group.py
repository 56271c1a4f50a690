"""`envcheck images`: the published cells, and what other programs read of them. Each command is a module `NAME.py`."""

from __future__ import annotations

from typing import Final

import click

from envcheck.cli.lazy_group import DefaultGroup

COMMANDS: Final = {
    "list": "List the cells: what runs when no command is named.",
    "sbom": "Print the bill of materials of a cell's image.",
    "size": "Show what uses the space in a local image.",
}


@click.group(cls=DefaultGroup, room="images", described=COMMANDS, default="list")
def command() -> None:
    """List the published cells: driver floor, targets, and which still lack a lock.

    \b
    envcheck images
    envcheck images 'torch2.8*' --json

    Exit 0: listed, even if a cell lacks a lock; 2: a lock cannot be used, or wrong usage; 3: git is needed and missing.
    """
