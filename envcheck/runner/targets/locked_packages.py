"""What an environment's lock holds, where this envcheck ships that very lock: its digest is among the promises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from envcheck.data import data_path
from envcheck.errors import ConfigError
from envcheck.images.locks import lockfile
from envcheck.images.locks.model import Group
from envcheck.images.targets import RECIPES, groups_of
from envcheck.matrix.facts.model import Cell


def with_packages(promises: Mapping[str, str]) -> dict[str, str]:
    """Return the promises with `packages` ("filelock==3.20.0 …") where the lock meant is the one shipped for the cell.

    An image with a user's own packages promises all of them itself. Of a lock by another hand, or of another release of
    envcheck, only the digest is known; then nothing is added.
    """
    if "packages" in promises:
        return dict(promises)
    target = promises.get("target", "")
    groups = groups_of(target) if target in RECIPES else lockfile.GROUPS
    pinned = _pins(promises.get("cell", ""), promises.get("lock", ""), groups)
    return {**promises, **({"packages": " ".join(pinned)} if pinned else {})}


def _pins(name: str, digest: str, groups: Sequence[Group]) -> list[str]:
    cell = Cell.parse(name)  # a label is anybody's: only a cell's name becomes a path
    if cell is None:
        return []
    try:
        locks = lockfile.read_locks(data_path("images") / str(cell), groups)
    except (ConfigError, OSError):
        return []
    if lockfile.digest(locks) != digest:
        return []
    return [f"{pin.name}=={pin.version}" for each in locks for pin in each.pins]
