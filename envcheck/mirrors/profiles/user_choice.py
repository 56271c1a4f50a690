"""The profile that a user chose: one line of a file in the user's configuration directory."""

from __future__ import annotations

from pathlib import Path

from envcheck import safe_files
from envcheck.data import xdg
from envcheck.errors import ConfigError
from envcheck.mirrors.profiles.model import Profile


def path() -> Path:
    """Return the path of the file with the choice."""
    return xdg("XDG_CONFIG_HOME", ".config") / "envcheck" / "mirror"


def read() -> str | None:
    """Return the chosen name or path, or None without a choice. Raise ConfigError if the file cannot be read."""
    file = path()
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip() or None if file.is_file() else None
    except OSError as error:
        message = f"{file}: cannot read the chosen mirror: {error.strerror}"
        raise ConfigError(message, fix="pass --mirror none, host, ...; or set HOME to this user's own") from error


def without_file(name: str) -> Profile | None:
    """Return the profile `none`, also where `user` stands for it; None for one that must be read from YAML.

    Importing YAML takes a fifth of the start of `envcheck resolve`, and most users need none of it.
    """
    chosen = read() if name == "user" else name
    return Profile(name="none") if chosen in (None, "none", "user") else None


def write(name: str) -> Path:
    """Write the choice atomically; return the path of the file."""
    file = path()
    file.parent.mkdir(parents=True, exist_ok=True)
    safe_files.put(file, f"{name}\n".encode())
    return file


def forget() -> Path | None:
    """Remove the choice; return the path of its file, or None if there was no choice."""
    file = path()
    if not file.is_file():
        return None
    file.unlink()
    return file
