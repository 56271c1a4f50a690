"""`envcheck matrix`: the facts that every answer is based on."""

from __future__ import annotations

import click

from envcheck.cli.lazy_group import LazyGroup

COMMANDS = {
    "show": "Show the facts, filtered.",
    "check": "Lint the facts.",
    "wheel": "Open a wheel, and print its row for extensions.yaml.",
}


@click.group(cls=LazyGroup, room="matrix", described=COMMANDS)
def command() -> None:
    """Show and lint the facts that every answer is based on.

    \b
    envcheck matrix show --torch 2.8
    envcheck matrix check
    """
