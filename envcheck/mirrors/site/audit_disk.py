"""What an audit does on the disk: walk a cache leaving nothing out, hash, and take a file away."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

CHUNK: Final = 1 << 20
# A server may write a file in place: what changed this short a time ago (seconds) is looked at again.
_FRESH: Final = 3.0
_PAUSE: Final = 0.5


@dataclasses.dataclass(frozen=True)
class Unread:
    """What could not be read, and why; `strange` is what was read, and is not what lies in such a cache."""

    path: Path
    why: str
    strange: bool = False


def files(root: Path) -> Iterator[Path | Unread]:
    """Yield every file below a directory, in order; one that cannot be read is told. Nothing where there is no root."""
    refused: list[OSError] = []
    for folder, below, names in os.walk(root, onerror=refused.append):
        below.sort()
        yield from (Path(folder, name) for name in sorted(names))
        links = [path for path in (Path(folder, name) for name in below) if path.is_symlink()]
        yield from (Unread(path, "a link to a directory", strange=True) for path in links)
    yield from (unread(Path(error.filename or root), error) for error in refused if not _absent(error))


def unread(path: Path, error: OSError) -> Unread:
    """Return that a path could not be read, and why."""
    return Unread(path, error.strerror or type(error).__name__)


def _absent(error: OSError) -> bool:
    return isinstance(error, FileNotFoundError)


def fed(path: Path, hashers: Iterable[Any], start: int = 0, limit: int | None = None) -> int:
    """Feed a file's bytes from `start` on, at most `limit` of them, to hashers; return how many they were."""
    hashers = list(hashers)
    at = 0
    with path.open("rb") as file:
        file.seek(start)
        while chunk := file.read(CHUNK if limit is None else min(CHUNK, limit - at)):
            at += len(chunk)
            for hasher in hashers:
                hasher.update(chunk)
    return at


def settled(path: Path, expected: str) -> str:
    """Return a file's sha256: the expected one, or another once nobody writes the file any more. Raise OSError."""
    before = _stamp(path)
    while True:
        hasher = hashlib.sha256()
        fed(path, [hasher])
        if hasher.hexdigest() == expected:
            return expected
        if time.time() - before[0] / 1e9 < _FRESH:
            time.sleep(_PAUSE)
        after = _stamp(path)
        if after == before:
            return hasher.hexdigest()
        before = after


def _stamp(path: Path) -> tuple[int, int, int]:
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def removed(paths: Sequence[Path]) -> tuple[tuple[str, ...], str]:
    """Take files away, each at once or not at all; return those, and why the others are still there."""
    tried = [(path, _unlinked(path)) for path in paths]
    gone = tuple(str(path) for path, why in tried if why is None)
    return gone, "; ".join(f"{path} is still there: {why}" for path, why in tried if why is not None)


def _unlinked(path: Path) -> str | None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        return unread(path, error).why
    return None


def empty(*folders: Path) -> None:
    """Take directories away that hold nothing, in this order; others stay."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()
