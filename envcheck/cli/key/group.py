"""`envcheck key`: the keys that sign proofs, promotions and bundles. Each command is a module `NAME.py`."""

from __future__ import annotations

from typing import Final

import click

from envcheck.cli.lazy_group import LazyGroup

COMMANDS: Final = {
    "new": "Make a signing key.",
}


@click.group(cls=LazyGroup, room="key", described=COMMANDS)
def command() -> None:
    """Make the keys that sign proofs and bundles.

    \b
    envcheck key new release
    """
