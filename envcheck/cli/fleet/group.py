"""`envcheck fleet`: the reports and the launch of many nodes. Each command is a module `NAME.py`; not so `group`."""

from __future__ import annotations

from typing import Final

import click

from envcheck.cli.lazy_group import LazyGroup

COMMANDS: Final = {
    "report": "Say which nodes failed, are missing or differ, and which to use now.",
    "render": "Write envcheck's files for Slurm, Kubernetes or Prometheus.",
    "gate": "Say whether this node may take work now.",
    "group": "Measure what lies between nodes, with ranks on all of them.",
    "pairs": "Find the node, link or GPU at fault by tests of groups.",
    "plan": "Say which published cells cover all nodes, and what a newer driver would add.",
}


@click.group(cls=LazyGroup, room="fleet", described=COMMANDS, modules={"group": "group_command"})
def command() -> None:
    """Validate many nodes, and say which of them to use now.

    \b
    srun --ntasks-per-node=1 envcheck run --output reports/
    envcheck fleet report reports/ --expect 'n[1-1000]'
    """
