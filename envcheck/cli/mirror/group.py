"""`envcheck mirror`: mirror profiles and mirror sites. Each command is a module `NAME.py`, imported when it runs."""

from __future__ import annotations

from typing import Final

import click

from envcheck.cli.lazy_group import LazyGroup

COMMANDS: Final = {
    "list": "List the mirrors that `--mirror` takes by name.",
    "show": "Show what a profile sets and lacks, or a client's settings.",
    "use": "Choose the profile that `--mirror user` means.",
    "doctor": "Find settings that no program reads, or that are dangerous.",
    "probe": "Measure which mirror has the needed files, and how fast.",
    "site": "Render the configuration of your own mirror.",
}


@click.group(cls=LazyGroup, room="mirror", described=COMMANDS)
def command() -> None:
    """Choose, measure and run mirrors.

    \b
    envcheck mirror list
    envcheck mirror show tuna --format pip
    eval "$(envcheck mirror show site.yaml --format env)"
    envcheck mirror doctor Dockerfile
    """
