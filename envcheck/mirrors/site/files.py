"""Write a site's files atomically, remove those of an earlier render, and keep edited ones.

rendered.json lists the written files with their hashes; no other file below the directory is ever removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from envcheck import safe_files
from envcheck.errors import ConfigError

_DIRECTORIES: Final = (
    "cache/index",
    "cache/files",
    "cache/hf",
    "logs/olah",
    "run",
    "public/static",
    "state/metrics",
    "trees",
)
_RENDERED: Final = "rendered.json"


class RenderedFiles(NamedTuple):
    """The result of a render: names below the directory; `kept` maps edited files to their new names."""

    files: list[str]
    removed: list[str]
    kept: dict[str, str]


def write(root: Path, files: Mapping[str, str]) -> RenderedFiles:
    """Write all files below root, and remove files of an earlier render that are no longer rendered.

    Keep edited files under another name. Raise ConfigError if the directory is neither empty nor a site's.
    """
    refuse_foreign_directory(root)
    for name in _DIRECTORIES:
        (root / name).mkdir(parents=True, exist_ok=True)
    before = _read_rendered(root)
    kept = _put_edited_aside(root, before, files)
    stale = [name for name in before if name not in files and (root / name).is_file()]
    for name in stale:
        _remove(root, name)
    for name, text in {**files, _RENDERED: _hashes(files)}.items():
        _write(root / name, text)
    return RenderedFiles(list(files), stale, kept)


def refuse_foreign_directory(root: Path) -> None:
    """Raise ConfigError for a directory that is neither empty nor a site's."""
    if root.is_dir() and any(root.iterdir()) and not (root / "site.json").exists():
        message = f"{root} is not empty and not a mirror site"
        raise ConfigError(message, fix="name an empty directory")


def _put_edited_aside(root: Path, before: Mapping[str, str], files: Mapping[str, str]) -> dict[str, str]:
    """Rename edited files that differ from both the old and the new content; return name -> new name."""
    edited = [name for name in {**before, **files} if _is_edited(root / name, before.get(name), files.get(name))]
    return {name: _put_aside(root, name) for name in edited}


def _hashes(files: Mapping[str, str]) -> str:
    return json.dumps({name: _hash(text.encode()) for name, text in files.items()}, indent=1) + "\n"


def _read_rendered(root: Path) -> dict[str, str]:
    """Return name -> hash of the last render, or an empty mapping if the list cannot be read."""
    try:
        hashes = json.loads((root / _RENDERED).read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(hashes, dict):
        return {}
    return {
        name: str(digest) for name, digest in hashes.items() if (root / name).resolve().is_relative_to(root.resolve())
    }


def _is_edited(path: Path, written: str | None, text: str | None) -> bool:
    """Tell whether a file differs from both the written content and the new content."""
    if not path.is_file():
        return False
    current = _hash(path.read_bytes())
    return current != written and (text is None or current != _hash(text.encode()))


def _put_aside(root: Path, name: str) -> str:
    ends = (f"{name}.edited{number or ''}" for number in range(1 << 16))
    free = next(end for end in ends if not (root / end).exists())
    (root / name).rename(root / free)
    return free


def _remove(root: Path, name: str) -> None:
    (root / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # the directory holds other files
        (root / name).parent.rmdir()


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    safe_files.put(path, text.encode())
