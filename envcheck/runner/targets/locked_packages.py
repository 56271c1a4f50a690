"""What an environment's lock holds, where this machine has that very lock: its digest is among the promises."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import get_args

from packaging.utils import canonicalize_name

from envcheck.data import data_path, state_path
from envcheck.errors import ConfigError
from envcheck.images.locks import lockfile
from envcheck.images.locks.model import Group, Lock
from envcheck.images.targets import RECIPES, extensions_of, groups_of
from envcheck.matrix.facts.model import Cell, HostArch


def with_packages(promises: Mapping[str, str]) -> dict[str, str]:
    """Return the promises with `packages` ("filelock==3.20.0 …") as in the lock meant, shipped or of a build here.

    `target_packages` ("ipykernel …") are those that the promised target is made of, whatever their versions.
    Of a lock by another hand, or of another release of envcheck, only the digest is known; then `packages` are those
    that the environment promises itself, if it does.
    """
    target = promises.get("target", "")
    if target in RECIPES and RECIPES[target].requirements:
        cuda = promises.get("cuda")
        extensions = extensions_of(target, None if cuda in {"none", "unknown"} else cuda)
        names = " ".join(canonicalize_name(name) for name in (*RECIPES[target].requirements, *extensions))
        promises = {**promises, "target_packages": names}
    groups = groups_of(target) if target in RECIPES else lockfile.GROUPS
    pinned = _pins(promises.get("cell", ""), promises.get("lock", ""), groups)
    return {**promises, **({"packages": " ".join(pinned)} if pinned else {})}


def _pins(name: str, digest: str, groups: Sequence[Group]) -> list[str]:
    cell = Cell.parse(name)  # a label is anybody's: only a cell's name becomes a path
    if cell is None:
        return []
    locks = next((locks for locks in _locks_here(cell, groups) if lockfile.digest(locks) == digest), [])
    return [f"{pin.name}=={pin.version}" for each in locks for pin in each.pins]


def _locks_here(cell: Cell, groups: Sequence[Group]) -> Iterator[list[Lock]]:
    """Give what a build may have installed: shipped locks, those that builds made, and shipped ones with these on top.

    It is one architecture's at a time.
    """
    for arch in get_args(HostArch):
        shipped = _read(data_path("images"), cell, groups, arch)
        made = _read(state_path("images"), cell, groups, arch)
        merged = {**made, **shipped}
        for locks in (shipped, made, merged):
            yield [locks[group] for group in groups if group in locks]


def _read(images: Path, cell: Cell, groups: Sequence[Group], arch: HostArch) -> dict[Group, Lock]:
    try:
        return {lock.group: lock for lock in lockfile.read_locks(images / str(cell), groups, arch)}
    except (ConfigError, OSError):
        return {}
