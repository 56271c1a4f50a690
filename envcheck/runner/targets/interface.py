"""Whose environment is run: the contract a target keeps, and which Python of this machine is meant."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from envcheck.errors import ConfigError
from envcheck.runner.schema import GroupFacts, TargetFacts

PROMISES_FILE: Final = "envcheck-promises.json"
IMAGE_PROMISES: Final = Path("/etc/envcheck/promises.json")
IMAGE_PREFIX: Final = "/opt/venv"


class Handle(Protocol):
    """A started worker. Its stdin is held open by this process, and its end is the worker's."""

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""

    def log(self) -> str:
        """Return the last of what the worker itself printed."""

    def end(self, groups: list[int]) -> None:
        """Cut the lifeline, and end what does not follow; `groups` are process groups it is known to have started."""


class Target(Protocol):
    """Something with a Python in it. `ours`: files the worker makes belong to this user, and are removed here."""

    @property
    def facts(self) -> TargetFacts:
        """Say what it is."""

    @property
    def ours(self) -> bool:
        """Tell whether what the worker writes is this user's to remove."""

    def start(self, directory: Path) -> Handle:
        """Start the worker on the plan in a directory of this machine."""

    def promises(self, environment: Mapping[str, Any]) -> dict[str, str]:
        """Return what it says of itself; nothing for one that promises nothing."""


class NodeGroup(Protocol):
    """The other nodes of a run whose ranks work together with those of this one."""

    @property
    def world(self) -> int:
        """Return how many ranks all nodes have together; 0 before they are ready."""

    @property
    def facts(self) -> GroupFacts:
        """Say who they are."""

    def together(self, events: Iterator[dict[str, Any]], directory: Path) -> Iterator[dict[str, Any]]:
        """Yield the events of this node's worker, with what the ranks of all nodes measured in those that say it.

        The worker waits for the others when it is ready; `directory` is that of its plan.
        """


class ChosenPython(NamedTuple):
    """An interpreter of this machine, and why this one."""

    python: Path
    why: str


def choose_python(path: Path | None, environ: Mapping[str, str] = os.environ) -> ChosenPython:
    """Return --python, else the active virtual or conda environment's, else `python3` on PATH, else envcheck's own."""
    if path is not None:
        return ChosenPython(_interpreter(path), "--python")
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        active = Path(environ.get(name) or "/nonexistent") / "bin" / "python"
        if os.access(active, os.X_OK):
            return ChosenPython(active, f"${name}")
    on_path = shutil.which("python3", path=environ.get("PATH"))
    return (
        ChosenPython(Path(on_path), "python3 on PATH")
        if on_path
        else ChosenPython(Path(sys.executable), "envcheck's own")
    )


def _interpreter(path: Path) -> Path:
    """Return an absolute path; a virtual environment's symlink stays one, for it decides which environment it is."""
    python = path / "bin" / "python" if path.is_dir() else path
    if not python.exists():
        on_path = shutil.which(str(path)) if path.name == str(path) and not path.is_dir() else None
        if on_path is None:
            message = f"no Python at {python}"
            raise ConfigError(message, fix="give --python the path of an interpreter or of an environment")
        python = Path(on_path)
    if not os.access(python, os.X_OK):
        message = f"{python} is not executable"
        raise ConfigError(message, fix="give --python the path of an interpreter")
    return Path(os.path.abspath(python))  # noqa: PTH100 (resolve() would follow the environment's symlink)


def read_promises(prefix: str) -> dict[str, str]:
    """Return the promises of an environment made by envcheck, by its sys.prefix."""
    promises = Path(prefix) / PROMISES_FILE
    if promises.exists():
        return parse_promises(promises.read_text(encoding="utf-8"), str(promises))
    if prefix == IMAGE_PREFIX and IMAGE_PROMISES.exists():
        return parse_promises(IMAGE_PROMISES.read_text(encoding="utf-8"), str(IMAGE_PROMISES))
    return {}


def parse_promises(text: str, where: str) -> dict[str, str]:
    """Return a JSON object of strings, its keys as checks know them; anything else is a ConfigError."""
    try:
        promises = json.loads(text)
    except ValueError as error:
        message = f"{where} is not JSON: {error}"
        raise ConfigError(message, fix="build the environment again, or remove the file") from error
    if not isinstance(promises, dict) or not all(isinstance(v, str) for v in promises.values()):
        message = f"{where} is not a JSON object of strings"
        raise ConfigError(message, fix="build the environment again, or remove the file")
    return {key.replace("-", "_"): value for key, value in promises.items()}
