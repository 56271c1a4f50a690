"""Which of the files that are asked for are in a profile's directories: told by their hash, asked of nobody."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from envcheck.mirrors.locate import Need, local_files
from envcheck.mirrors.measured import Reached, Sight
from envcheck.mirrors.profile import Profile
from envcheck.mirrors.sights import Asked

_AT_ONCE: Final = 1 << 20


def held(profile: Profile, asked: Iterable[Asked]) -> dict[str, Sight]:
    """Return the files that this machine's directories hold, by hash. Each of a right name is read whole."""
    indexes = {"pypi": profile.pypi, "pytorch": profile.pytorch}
    found: dict[str, Sight] = {}
    for one in asked:
        for path in local_files(Need(one.project, one.sha256, one.part, one.version), indexes):
            digest, size = _hash(path)
            if digest in one.sha256:
                found.setdefault(digest, _sight(one, digest, path.name, size))
    return found


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
