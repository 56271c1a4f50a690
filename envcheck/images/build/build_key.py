"""What a build is identified by: equal keys mean equal content, whichever mirror the bytes came through."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

# Where bytes come from is no content: the locks' hashes hold them to the same bytes wherever that is.
_MIRROR: Final = "mirror"
_SCRIPTS: Final = frozenset({".sh", ".py"})


def counts(path: Path) -> bool:
    """Tell whether a file of the context (relative to it) is content: all but the mirror's, whose scripts are."""
    return path.parts[0] != _MIRROR or path.suffix in _SCRIPTS


def context_digest(context: Path) -> str:
    """Return the sha256 of what a context holds: names, executable bits and bytes, but no dates and no mirror."""
    total = hashlib.sha256()
    files = sorted(p for p in context.rglob("*") if p.is_file() and counts(p.relative_to(context)))
    for path in files:
        executable = bool(path.stat().st_mode & 0o100)
        digest = hashlib.sha256(_content(path)).hexdigest()
        total.update(f"{digest} {int(executable)} {path.relative_to(context)}\n".encode())
    return total.hexdigest()


def _content(path: Path) -> bytes:
    """Return a file's bytes; the Dockerfile's without the base's name, whose content the key holds already."""
    if path.name != "Dockerfile":
        return path.read_bytes()
    return b"".join(line for line in path.read_bytes().splitlines(keepends=True) if not line.startswith(b"ARG BASE="))


def key(*, context: str, base: str, platform: str, target: str, secrets: Iterable[str]) -> str:
    """Return the build key. `secrets` are their ids: a value never reaches a key."""
    parts = {"context": context, "base": base, "platform": platform, "target": target, "secrets": sorted(secrets)}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
