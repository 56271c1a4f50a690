"""What a group of nodes measures: checks of ranks, which run over several nodes as they do on one, and of links."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Collection
from typing import Final

from envcheck.errors import ConfigError
from envcheck.runner.planning.discover import CheckModule, checked_module

# In the order of what each needs: data must be right before a speed means anything.
CHECKS: Final = (
    "envcheck.checks.env.collectives",
    "envcheck.checks.between_nodes.node_links",
    "envcheck.checks.env.all_reduce_bandwidth",
    "envcheck.checks.env.straggler",
)


def chosen(only: Collection[str] = ()) -> list[CheckModule]:
    """Return the checks of a group, or those of `only`. Raise ConfigError for an id that none has."""
    modules = [checked_module(importlib.import_module(name), "env", f"module:{name}") for name in CHECKS]
    by_id = {module.id: module for module in modules}
    for name in only:
        if name not in by_id:
            near = difflib.get_close_matches(name, by_id, 1)
            message = f"a group of nodes has no check {name[:60]!r}"
            raise ConfigError(message, fix=f"did you mean {near[0]}?" if near else f"give one of {', '.join(by_id)}")
    return [module for module in modules if not only or module.id in only]
