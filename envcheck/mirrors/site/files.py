"""A site's files on disk: each written whole by a rename; what an earlier render left goes, what was edited stays.

rendered.json says what was written, by hash: nothing else below the directory is ever removed.
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

_WORKING: Final = ("cache/index", "cache/files", "cache/hf", "logs/olah", "run", "public/static", "state/sync", "trees")
_RENDERED: Final = "rendered.json"


class Written(NamedTuple):
    """What became of a site's files: names below its directory; `kept` maps what was edited to where it is now."""

    files: list[str]
    removed: list[str]
    kept: dict[str, str]


def write(root: Path, files: Mapping[str, str]) -> Written:
    """Write every file below root, which is empty or a site's, and remove what an earlier render wrote and this not.

    What was edited since is kept under another name. Raise ConfigError for a directory with something else in it.
    """
    refuse_others(root)
    for name in _WORKING:
        (root / name).mkdir(parents=True, exist_ok=True)
    before = _rendered(root)
    kept = _kept(root, before, files)
    stale = [name for name in before if name not in files and (root / name).is_file()]
    for name in stale:
        _remove(root, name)
    _write_all(root, files, {})
    return Written(list(files), stale, kept)


def refuse_others(root: Path) -> None:
    """Raise ConfigError for a directory with something else in it than a site."""
    if root.is_dir() and any(root.iterdir()) and not (root / "site.json").exists():
        message = f"{root} is not empty and holds no mirror site"
        raise ConfigError(message, fix="name a directory of its own")


def change(root: Path, files: Mapping[str, str]) -> dict[str, str]:
    """Write some files of a site anew; return what was edited since, and where it is now."""
    before = _rendered(root)
    kept = _kept(root, {name: digest for name, digest in before.items() if name in files}, files)
    _write_all(root, files, before)
    return kept


def _kept(root: Path, before: Mapping[str, str], files: Mapping[str, str]) -> dict[str, str]:
    """Put aside what is neither what was written nor what will be; return name -> where it is now."""
    edited = [name for name in {**before, **files} if _edited(root / name, before.get(name), files.get(name))]
    return {name: _put_aside(root, name) for name in edited}


def _write_all(root: Path, files: Mapping[str, str], before: Mapping[str, str]) -> None:
    for name, text in files.items():
        _write(root / name, text)
    told = {**before, **{name: _hash(text.encode()) for name, text in files.items()}}
    _write(root / _RENDERED, json.dumps(told, indent=1) + "\n")


def _rendered(root: Path) -> dict[str, str]:
    """Return what the last render wrote: name -> hash; nothing where it cannot be read, and then nothing is removed."""
    try:
        told = json.loads((root / _RENDERED).read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(told, dict):
        return {}
    return {
        name: str(digest) for name, digest in told.items() if (root / name).resolve().is_relative_to(root.resolve())
    }


def _edited(path: Path, was: str | None, text: str | None) -> bool:
    """Tell whether a file is neither what was written nor what would be."""
    if not path.is_file():
        return False
    told = _hash(path.read_bytes())
    return told != was and (text is None or told != _hash(text.encode()))


def _put_aside(root: Path, name: str) -> str:
    ends = (f"{name}.edited{number or ''}" for number in range(1 << 16))
    free = next(end for end in ends if not (root / end).exists())
    (root / name).rename(root / free)
    return free


def _remove(root: Path, name: str) -> None:
    (root / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # others' files are still in it
        (root / name).parent.rmdir()


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    safe_files.put(path, text.encode())
