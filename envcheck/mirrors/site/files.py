"""A site's files on disk: written whole, each by a rename, and the directories its parts work in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from envcheck.errors import ConfigError

_WORKING: Final = ("cache/index", "cache/files", "cache/hf", "logs/olah", "run", "public/static", "state/sync")


def write(root: Path, files: Mapping[str, str]) -> list[Path]:
    """Write every file below root, which is empty or a site's. Return their paths."""
    if root.is_dir() and any(root.iterdir()) and not (root / "site.json").exists():
        message = f"{root} is not empty and holds no mirror site"
        raise ConfigError(message, fix="name a directory of its own")
    for name in _WORKING:
        (root / name).mkdir(parents=True, exist_ok=True)
    return [_written(root / name, text) for name, text in files.items()]


def _written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)  # noqa: PTH105 (a rename that may go over an older file, said as such)
    return path
