"""`envcheck mirror`: where bytes come from. Each command is a file of its own, `NAME.py`, read when it runs."""

from __future__ import annotations

import importlib
from typing import Final

import click

from envcheck.cli import prepare

COMMANDS: Final = {
    "list": "The mirrors that can be named, and what each is for.",
    "show": "What a profile sets, lacks and cannot do; or a client's settings.",
    "use": "Choose the profile that `--mirror user` means.",
    "env": "A profile as commands of a shell, for `eval`.",
    "doctor": "Find settings that nothing reads, or that are dangerous.",
    "probe": "Which mirror has the very files that are needed, and how fast.",
    "site": "Render, start and watch a mirror of one's own.",
    "audit": "Hash again what a mirror serves.",
}


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 (click's signature)
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"envcheck.cli.mirror.{cmd_name}").command
        if not isinstance(command, click.Command):
            message = f"envcheck.cli.mirror.{cmd_name}.command is no click command"
            raise TypeError(message)
        prepare(command, f"mirror {cmd_name}")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Lazy)
def command() -> None:
    """Know where bytes come from: mirror profiles.

    \b
    envcheck mirror list
    envcheck mirror show tuna --format pip
    eval "$(envcheck mirror env site.yaml)"
    envcheck mirror doctor Dockerfile
    """
