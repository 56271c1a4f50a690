"""The file that says which nodes share an NVLink domain or a switch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from envcheck import safe_files
from envcheck.errors import ConfigError
from envcheck.fleet.hostlist import unfold


def read_domains(path: Path, nodes: Sequence[str]) -> dict[str, str]:
    """Return the domain of each node from lines `NAME HOSTLIST`; # begins a comment.

    Raise ConfigError for a node in two domains or in none.
    """
    try:
        text = safe_files.read_whole(path).decode()
    except UnicodeDecodeError as error:
        message = f"{path} is not a text file"
        raise ConfigError(message, fix="write lines `NAME HOSTLIST`") from error
    domain_of: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        name, *remainder = line.partition("#")[0].split(None, 1) or [""]
        if not name:
            continue
        listed = "".join(remainder)
        for node in _unfolded(listed, f"{path}:{number}"):
            if domain_of.setdefault(node, name) != name:
                message = f"{path}:{number}: {node} is in the domains {domain_of[node]} and {name}"
                raise ConfigError(message, fix="name each node once")
    missing = [node for node in nodes if node not in domain_of]
    if missing:
        message = f"{path} has no domain for {', '.join(missing[:3])}" + (" and others" if len(missing) > 3 else "")  # noqa: PLR2004
        raise ConfigError(message, fix="write a line `NAME HOSTLIST` with them")
    return {node: domain_of[node] for node in nodes}


def _unfolded(listed: str, where: str) -> list[str]:
    try:
        return unfold(listed)
    except ConfigError as error:
        message = f"{where}: {error.message}"
        raise ConfigError(message, fix=error.fix) from error
