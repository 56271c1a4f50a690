"""The profile a user has chosen: one line in a file of the user's own configuration directory."""

from __future__ import annotations

from pathlib import Path

from envcheck import safe_files
from envcheck.data import xdg
from envcheck.errors import ConfigError


def path() -> Path:
    """Return where the choice is kept."""
    return xdg("XDG_CONFIG_HOME", ".config") / "envcheck" / "mirror"


def read() -> str | None:
    """Return the name or the path that was chosen, or None. Raise ConfigError where that may not be read."""
    file = path()
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip() or None if file.is_file() else None
    except OSError as error:
        message = f"{file}: {error.strerror}: which mirror was chosen cannot be read"
        raise ConfigError(message, fix="name one: --mirror none, host, ...; or set HOME to this user's own") from error


def write(name: str) -> Path:
    """Keep a choice, in one step; return where."""
    file = path()
    file.parent.mkdir(parents=True, exist_ok=True)
    safe_files.put(file, f"{name}\n".encode())
    return file


def forget() -> Path | None:
    """Take a choice back; return where it was, or None where there was none."""
    file = path()
    if not file.is_file():
        return None
    file.unlink()
    return file
