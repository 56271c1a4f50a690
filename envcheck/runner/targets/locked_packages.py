"""What an environment's lock holds, where this envcheck ships that very lock: its digest is among the promises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from packaging.utils import canonicalize_name

from envcheck.data import data_path
from envcheck.errors import ConfigError
from envcheck.images.locks import lockfile
from envcheck.images.locks.model import Group
from envcheck.images.targets import RECIPES, groups_of
from envcheck.matrix.facts.model import Cell


def with_packages(promises: Mapping[str, str]) -> dict[str, str]:
    """Return the promises with `packages` ("filelock==3.20.0 …") where the lock meant is the one shipped for the cell.

    `target_packages` ("ipykernel …") are those that the promised target is made of, whatever their versions.
    An image with a user's own packages promises all of them itself. Of a lock by another hand, or of another release of
    envcheck, only the digest is known; then nothing is added.
    """
    target = promises.get("target", "")
    if target in RECIPES and RECIPES[target].requirements:
        names = " ".join(canonicalize_name(name) for name in RECIPES[target].requirements)
        promises = {**promises, "target_packages": names}
    if "packages" in promises:
        return dict(promises)
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
