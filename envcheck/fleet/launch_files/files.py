"""Which files there are for each system, and their text."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from envcheck.errors import ConfigError
from envcheck.fleet.launch_files.dashboard import dashboard
from envcheck.fleet.launch_files.values import LaunchValues, context
from envcheck.templating import rendered

DASHBOARD: Final = "dashboard.json"
# By system: each file, and what it is for.
FILES: Final = {
    "slurm": {
        "sweep.sbatch": "a run on each node, a report a node",
        "group.sbatch": "ranks on all nodes that work together, a report a node and one of the group",
        "prolog.sh": "Prolog: refuse a job on a node whose check failed",
        "epilog.sh": "Epilog: look at a node after each job",
        "health.sh": "HealthCheckProgram: keep the verdicts of idle nodes fresh",
        "slurm.conf.part": "the lines for slurm.conf",
    },
    "kubernetes": {
        "sweep-job.yaml": "a run on each node, a report a node (an indexed Job)",
        "preflight.yaml": "a pod with a gate before its training (an init container)",
        "watch-daemonset.yaml": "keep the verdicts of all nodes fresh",
        "rbac.yaml": "what --drain needs: an account that may taint nodes",
        "gang-jobset.yaml": "ranks on all nodes that work together (a JobSet)",
    },
    "prometheus": {
        "rules.yml": "alerts over the metrics of a fleet and of single nodes",
        DASHBOARD: "a Grafana dashboard of a fleet",
    },
}
# On Slurm the ranks of a group are of an environment that the nodes have.
_NO_IMAGE: Final = "group.sbatch"
_DRAINING: Final = "rbac.yaml"
_EXECUTABLE: Final = (".sh", ".sbatch")


class LaunchFile(NamedTuple):
    """A rendered file: its name, its text, and its mode."""

    name: str
    text: str
    mode: int


def launch_files(system: str, names: Sequence[str], values: LaunchValues) -> list[LaunchFile]:
    """Return the files of these names, all of a system without one. Raises ConfigError for a name that none has."""
    filled = context(values, system)
    left_out = {*([_NO_IMAGE] if values.python is None else []), *([] if values.drain else [_DRAINING])}
    fitting = [name for name in FILES[system] if name not in left_out]
    chosen = list(dict.fromkeys(_named(system, name) for name in names)) or fitting
    if _NO_IMAGE in chosen and values.python is None:
        message = f"{_NO_IMAGE} measures an environment on the nodes, not an image"
        raise ConfigError(message, fix="give --python PATH")
    if _DRAINING in chosen and not values.drain:
        message = f"{_DRAINING} is for the gate with --drain"
        raise ConfigError(message, fix="give --drain")
    return [LaunchFile(name, _text(system, name, filled), _mode(name)) for name in chosen]


def _text(system: str, name: str, filled: dict[str, Any]) -> str:
    return dashboard() if name == DASHBOARD else rendered(f"{system}/{name}.j2", filled)


def _mode(name: str) -> int:
    return 0o755 if name.endswith(_EXECUTABLE) else 0o644


def _named(system: str, name: str) -> str:
    """Return the file that a word means: its name, or its name without what is after the first dot or dash."""
    files = FILES[system]
    short = {word: file for file in files for word in (file, file.partition(".")[0], file.partition("-")[0])}
    if name in short:
        return short[name]
    near = difflib.get_close_matches(name, short, 1)
    message = f"{system} has no file called {name[:100]!r}"
    raise ConfigError(message, fix=f"did you mean {near[0]}?" if near else f"give one of {', '.join(files)}")
