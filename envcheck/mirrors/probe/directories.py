"""Which of the files that are asked for are in a profile's directories: told by their hash, asked of nobody."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from envcheck.mirrors.index.locate import LockedPackage, local_files
from envcheck.mirrors.probe.file_matches import Asked
from envcheck.mirrors.probe.measurements import Reached, Sight
from envcheck.mirrors.profiles.model import Profile

_AT_ONCE: Final = 1 << 20


def held(profile: Profile, asked: Iterable[Asked]) -> dict[str, Sight]:
    """Return the files that this machine's directories hold, by hash. Each of a right name is read whole."""
    found: dict[str, Sight] = {}
    for one, path in _candidates(profile, asked):
        digest, size = _hash(path)
        if digest in one.sha256:
            found.setdefault(digest, _sight(one, digest, path.name, size))
    return found


def glance(profile: Profile, asked: Iterable[Asked]) -> list[tuple[str, int, int]]:
    """Return path, size and time of each file that would be hashed: where these change, `held` may."""
    found = []
    for _, path in _candidates(profile, asked):
        with contextlib.suppress(OSError):
            stat = path.stat()
            found.append((str(path), stat.st_size, stat.st_mtime_ns))
    return sorted(found)


def _candidates(profile: Profile, asked: Iterable[Asked]) -> Iterator[tuple[Asked, Path]]:
    indexes = {"pypi": profile.pypi, "pytorch": profile.pytorch}
    # What is no wheel has no version that could be compared.
    for one in (one for one in asked if one.part.partition("/")[0] in indexes):
        for path in local_files(LockedPackage(one.project, one.sha256, one.part, one.version), indexes):
            yield one, path


def _sight(asked: Asked, digest: str, name: str, size: int) -> Sight:
    # No host: nobody was asked, and any range of a file on a disk can be read.
    reached = Reached(status=200, hosts=[], ranged=True, total=size)
    return Sight(need=asked.label, listed="hash", sha256=digest, name=name, size=size, reached=reached)


def _hash(path: Path) -> tuple[str, int]:
    hasher = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(_AT_ONCE):
                hasher.update(block)
            return hasher.hexdigest(), file.tell()
    except OSError:
        return "", 0
