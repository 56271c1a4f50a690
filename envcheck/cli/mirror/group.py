"""`envcheck mirror`: mirror profiles and mirror sites. Each command is a module `NAME.py`, imported when it runs."""

from __future__ import annotations

import importlib
from typing import Final

import click

from envcheck.cli import prepare

COMMANDS: Final = {
    "list": "List the mirrors that `--mirror` takes by name.",
    "show": "Show what a profile sets and lacks, or a client's settings.",
    "use": "Choose the profile that `--mirror user` means.",
    "env": "Print shell commands that apply a profile, for `eval`.",
    "doctor": "Find settings that no program reads, or that are dangerous.",
    "probe": "Measure which mirror has the needed files, and how fast.",
    "site": "Render, start and watch your own mirror.",
    "audit": "Verify the hashes of what a mirror serves.",
}


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 (click's signature)
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"envcheck.cli.mirror.{cmd_name}").command
        if not isinstance(command, click.Command):
            message = f"envcheck.cli.mirror.{cmd_name}.command is not a click command"
            raise TypeError(message)
        prepare(command, f"mirror {cmd_name}")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Lazy)
def command() -> None:
    """Choose, measure and run mirrors.

    \b
    envcheck mirror list
    envcheck mirror show tuna --format pip
    eval "$(envcheck mirror env site.yaml)"
    envcheck mirror doctor Dockerfile
    """
