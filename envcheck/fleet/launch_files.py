"""The files that start envcheck on many nodes: for Slurm and Kubernetes.

What a site fills in stands in a shell script or in YAML that root will run: values that could be more are refused.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

from envcheck.data import rendered
from envcheck.errors import ConfigError

# Slurm ends a HealthCheckProgram after 60 s (slurm.conf(5)); the script needs some of it to start and to end.
HEALTH_SECONDS: Final = 45
# Slurm keeps PrologEpilogTimeout, which is a little more than the budget, in 16 bits of seconds (slurm/slurm.h).
_LONGEST_BUDGET: Final = 18 * 3600
# The options that a system's files do not hold.
NOT_OF: Final = {
    "slurm": {"namespace", "variables", "drain"},
    "kubernetes": {"python", "program", "scripts", "reports", "partition"},
}
_REFERENCE: Final = re.compile(r"[a-z0-9][A-Za-z0-9._:/-]*@sha256:[0-9a-f]{64}")
_PATH: Final = re.compile(r"/[^\x00-\x1f\x7f-\x9f]*")
# What stands in slurm.conf, where nothing quotes it.
_PLAIN_PATH: Final = re.compile(r"/[A-Za-z0-9._/+-]*")
_PARTITION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(,[A-Za-z0-9][A-Za-z0-9_.-]*)*")
_NAMESPACE: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
# What the network of a group needs. Others would steer the checks, or envcheck itself (NODE_NAME, ENVCHECK_HOME).
_VARIABLE: Final = re.compile(r"(NCCL|FI|UCX|GLOO|RDMAV|IBV|MLX5)_[A-Za-z0-9_]+")
_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# Minutes that a run may take on a node, several times what it is planned for.
_MINUTES: Final = {"static": 10, "quick": 15, "standard": 30, "full": 120}


class LaunchValues(NamedTuple):
    """What the files are filled in with. Exactly one of `image` and `python` is given; times are whole seconds."""

    image: str | None
    python: str | None
    nodes: int
    gpus: int
    level: str
    max_age: float
    budget: float
    on_error: Literal["refuse", "admit"]
    program: str
    scripts: str
    reports: str
    state: str
    partition: str
    namespace: str
    variables: tuple[str, ...]
    drain: bool = False


def context(values: LaunchValues, system: str) -> dict[str, Any]:
    """Return what the templates of a system are rendered with. Raises ConfigError for one that is not safe there."""
    _hold("--image", values.image, _REFERENCE, "REPOSITORY@sha256:DIGEST; a tag can name another image tomorrow")
    for option, path in (("--python", values.python), ("--program", values.program), ("--reports", values.reports)):
        _hold(option, path, _PATH, "an absolute path without control characters")
    for option, path in (("--scripts", values.scripts), ("--state", values.state)):
        _hold(option, path, _PLAIN_PATH, "an absolute path of letters, digits and . _ + -")
    _hold("--partition", values.partition or None, _PARTITION, "the name of a partition")
    _hold("--namespace", values.namespace, _NAMESPACE, "a namespace of Kubernetes: a-z, 0-9 and -")
    if (values.image is None) == (values.python is None) or (system == "kubernetes" and values.image is None):
        message = "a pod runs an image" if system == "kubernetes" else "one environment is judged"
        both = "" if system == "kubernetes" else ", or --python PATH for one on the nodes"
        raise ConfigError(message, fix=f"give --image REPOSITORY@sha256:DIGEST{both}")
    max_age, budget = _seconds("--max-age", values.max_age, 60), _seconds("--budget", values.budget, 5)
    if budget > _LONGEST_BUDGET:
        message = f"--budget {values.budget:g}s is longer than a gate may take"
        raise ConfigError(message, fix="give at most 18h")
    target = f"--image {values.image}" if values.image else f"--python {shlex.quote(values.python or '')}"
    return {
        **values._asdict(),
        "target": target,
        "variables": _variables(values.variables),
        "max_age": max_age,
        "budget": budget,
        "health_budget": min(budget, HEALTH_SECONDS),
        # Two more tries before the verdict is too old for the prolog.
        "renew_after": max(1, max_age // 3),
        "interval": max(30, max_age // 3),
        "minutes": _MINUTES[values.level],
    }


def _hold(option: str, value: str | None, pattern: re.Pattern[str], expected: str) -> None:
    if value is not None and not pattern.fullmatch(value):
        message = f"{option} {value[:200]!r} cannot stand in a launch file"
        raise ConfigError(message, fix=f"give {expected}")


def _seconds(option: str, value: float, least: int) -> int:
    if value < least:
        message = f"{option} {value:g}s is too short for a node"
        raise ConfigError(message, fix=f"give at least {least}s")
    return round(value)


def _variables(assignments: tuple[str, ...]) -> list[tuple[str, str]]:
    pairs: dict[str, str] = {}
    for text in assignments:
        name, separator, value = text.partition("=")
        if not separator or _UNPRINTABLE.search(text):
            message = f"--env {text[:200]!r} is not NAME=VALUE"
            raise ConfigError(message, fix="write it as NCCL_SOCKET_IFNAME=eth0, on one line")
        if not _VARIABLE.fullmatch(name):
            message = f"--env {name[:200]!r} is not a variable of the network"
            raise ConfigError(message, fix="give NCCL_*, FI_*, UCX_*, GLOO_* and the like; set others in the image")
        if pairs.setdefault(name, value) != value:
            message = f"--env gives {name[:200]} two values"
            raise ConfigError(message, fix="give it once")
    return [*pairs.items()]


FILES: Final = {
    "slurm": ("sweep.sbatch", "group.sbatch", "prolog.sh", "epilog.sh", "health.sh", "slurm.conf.part"),
    "kubernetes": ("sweep-job.yaml", "preflight.yaml", "watch-daemonset.yaml", "rbac.yaml", "gang-jobset.yaml"),
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
    return [LaunchFile(name, rendered(f"{system}/{name}.j2", filled), _mode(name)) for name in chosen]


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
