"""The nodes that a site expects: a host list, or a file of names."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

from envcheck import safe_files
from envcheck.errors import ConfigError
from envcheck.fleet.hostlist import unfold

_FIX: Final = "give a Slurm host list such as n[1-64], or a file with one in each line"
# A domain may end in many a word; these are no top-level domains.
_TEXT_FILES: Final = (".txt", ".csv", ".list", ".hosts", ".nodes")


def expected_nodes(text: str) -> list[str]:
    """Return the names in a host list, or in the file of that name: host lists between lines, `#` begins a comment.

    Raise ConfigError where there is no name in it.
    """
    path = file_of(text)
    if path is not None and (path.is_dir() or (path.suffix in _TEXT_FILES and not path.exists())):
        message = f"--expect {text[:40]}{' is a directory' if path.is_dir() else ': no such file'}"
        raise ConfigError(message, fix=_FIX)
    names = unfold(text) if path is None else unfold(_content(path))
    if not names:
        message = f"--expect {text[:40]!r} names no node"
        raise ConfigError(message, fix=_FIX)
    return names


def file_of(text: str) -> Path | None:
    """Return the file or directory that a text names, also one that is not there; None for a host list."""
    path = Path(text)
    if "/" in text or path.suffix in _TEXT_FILES:
        return path
    with contextlib.suppress(OSError):  # a host list may be longer than any file's name
        return path if path.exists() else None
    return None


def _content(path: Path) -> str:
    try:
        text = safe_files.read_whole(path).decode()
    except UnicodeDecodeError as error:
        message = f"{path} is not a text file"
        raise ConfigError(message, fix="give a file of node names") from error
    return "\n".join(line.partition("#")[0] for line in text.splitlines())
