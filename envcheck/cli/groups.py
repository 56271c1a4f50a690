"""The groups of commands. Each command is one module, imported when the command runs."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import click


class LazyGroup(click.Group):
    """A group of commands: `envcheck.cli.<room>.<name>` has the one called name, or what `modules` names for it.

    `sections` gives each command's line in the help of the group, below its heading.
    """

    def __init__(
        self,
        *,
        room: str,
        described: Mapping[str, str] = MappingProxyType({}),
        sections: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
        modules: Mapping[str, str] = MappingProxyType({}),
        **settings: Any,
    ) -> None:
        super().__init__(**{"name": room} | settings)
        self.modules, self.room, self.sections = modules, room, sections or {"Commands": described}
        self.described = {name: line for section in self.sections.values() for name, line in section.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        """Return the names of the commands."""
        return list(self.described)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 (click's signature)
        """Return a command, its module imported; None for a name that no command has."""
        if cmd_name not in self.described:
            return None
        module, _, name = self.modules.get(cmd_name, f"{self.room}.{cmd_name}").partition(":")
        command: click.Command = getattr(importlib.import_module(f"envcheck.cli.{module}"), name or "command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the words name; suggest one for a word that is nearly a name."""
        if args and args[0] not in self.described:
            for near in difflib.get_close_matches(args[0], self.described, 1):
                ctx.fail(f"No such command {args[0]!r} (did you mean {near!r}?)")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of the commands, a section below each heading, without importing one."""
        widest = max(map(len, self.described))
        for heading, described in self.sections.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(widest), line) for name, line in described.items()])


class DefaultGroup(LazyGroup):
    """A group that is itself a command: words that begin with no command's name are those of `default`.

    `envcheck images 'torch2.8*' --json` is `envcheck images list 'torch2.8*' --json`.
    """

    def __init__(self, *, default: str, **settings: Any) -> None:
        super().__init__(subcommand_metavar="[CELL]... | COMMAND [ARGS]...", **settings)
        self.default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the default's name before words that name no command."""
        return super().parse_args(ctx, self.with_command(args))

    def with_command(self, args: list[str]) -> list[str]:
        """Return the words with the default's name before them, unless they name a command or ask for help."""
        return args if args and args[0] in (*self.described, "-h", "--help") else [self.default, *args]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of the default command, then the commands."""
        if default := self.get_command(ctx, self.default):
            default.format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


GROUPS: Final[dict[str, LazyGroup]] = {
    "images": DefaultGroup(
        room="images",
        described={
            "list": "List the cells: what runs when no command is named.",
            "sbom": "Print the bill of materials of a cell's image.",
            "size": "Show what uses the space in a local image.",
        },
        modules={"list": "commands.images:list_", "sbom": "commands.images:sbom", "size": "commands.images:size"},
        default="list",
        help="""List the published cells: driver floor, targets, and which still lack a lock.

        \b
        envcheck images
        envcheck images 'torch2.8*' --json

        Exit 0: listed, even if a cell lacks a lock; 2: a lock cannot be used, or wrong usage; 3: git is needed and
        missing.
        """,
    ),
    "matrix": LazyGroup(
        room="matrix",
        described={
            "show": "Show the facts, filtered.",
            "check": "Lint the facts.",
            "wheel": "Open a wheel, and print its row for extensions.yaml.",
        },
        modules={name: f"commands.matrix:{name}" for name in ("show", "check", "wheel")},
        help="""Show and lint the facts that every answer is based on.

        \b
        envcheck matrix show --torch 2.8
        envcheck matrix check
        """,
    ),
    "mirror": LazyGroup(
        room="mirror",
        described={
            "list": "List the mirrors that `--mirror` takes by name.",
            "show": "Show what a profile sets and lacks, or a client's settings.",
            "use": "Choose the profile that `--mirror user` means.",
            "doctor": "Find settings that no program reads, or that are dangerous.",
            "probe": "Measure which mirror has the needed files, and how fast.",
            "site": "Render the configuration of your own mirror.",
        },
        modules={"list": "mirror.profiles:list_", "show": "mirror.profiles:show", "use": "mirror.profiles:use"},
        help="""Choose, measure and run mirrors.

        \b
        envcheck mirror list
        envcheck mirror show tuna --format pip
        eval "$(envcheck mirror show site.yaml --format env)"
        envcheck mirror doctor Dockerfile
        """,
    ),
    "key": LazyGroup(
        room="key",
        described={"new": "Make a signing key."},
        modules={"new": "commands.key"},
        help="""Make the keys that sign proofs and bundles.

        \b
        envcheck key new release
        """,
    ),
    "fleet": LazyGroup(
        room="fleet",
        described={
            "report": "Say which nodes failed, are missing or differ, and which to use now.",
            "render": "Write envcheck's files for Slurm, Kubernetes or Prometheus.",
            "gate": "Say whether this node may take work now.",
            "group": "Measure what lies between nodes, with ranks on all of them.",
            "pairs": "Find the node, link or GPU at fault by tests of groups.",
            "plan": "Say which published cells cover all nodes, and what a newer driver would add.",
        },
        modules={"report": "fleet.report:report", "plan": "fleet.report:plan_"},
        help="""Validate many nodes, and say which of them to use now.

        \b
        srun --ntasks-per-node=1 envcheck run --output reports/
        envcheck fleet report reports/ --expect 'n[1-1000]'
        """,
    ),
}
