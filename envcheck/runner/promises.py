"""What an environment or image made by envcheck promises of itself, with the packages that its lock pins."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, get_args

import msgspec
from packaging.utils import canonicalize_name

from envcheck import safe_files
from envcheck.data import data_path, state_path
from envcheck.errors import ConfigError, refuse
from envcheck.images import lockfile
from envcheck.images.lockfile import Group, Lock
from envcheck.images.targets import RECIPES, extensions_of, groups_of
from envcheck.matrix.facts.model import Cell, HostArch

IMAGE_PROMISES: Final = Path("/etc/envcheck/promises.json")
_MOST: Final = 1 << 20  # bytes: it is as others left it, and may be a pipe or a device
IMAGE_PREFIX: Final = "/opt/venv"


def read_promises(prefix: str) -> dict[str, str]:
    """Return the promises of an environment made by envcheck, by its sys.prefix."""
    for promises in (Path(prefix) / "envcheck-promises.json", *([IMAGE_PROMISES] if prefix == IMAGE_PREFIX else [])):
        if content := _content(promises):
            return parse_promises(content, str(promises))
    return {}


def _content(promises: Path) -> bytes:
    try:
        return safe_files.read_regular(promises, _MOST) or b" "
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL in what it calls its prefix
        return b""
    except OSError as error:
        refuse(f"{promises} cannot be read: {error.strerror}", "build the environment again, or remove the file")


def parse_promises(text: str | bytes, where: str) -> dict[str, str]:
    """Return a JSON object of strings, its keys as checks know them; anything else is a ConfigError."""
    try:
        promises = msgspec.json.decode(text, type=dict[str, str])
    except msgspec.DecodeError as error:
        refuse(f"{where} is not a JSON object of strings: {error}", "build the environment again, or remove the file")
    return {key.replace("-", "_"): value for key, value in promises.items()}


def with_packages(promises: Mapping[str, str]) -> dict[str, str]:
    """Return the promises with `packages` ("filelock==3.20.0 …") as in the lock meant, shipped or of a build here.

    `target_packages` ("ipykernel …") are those that the promised target is made of, whatever their versions.
    Of a lock by another hand, or of another release of envcheck, only the digest is known; then `packages` are those
    that the environment promises itself, if it does.
    """
    target, cuda = promises.get("target", ""), promises.get("cuda")
    promised = dict(promises)
    if target in RECIPES and RECIPES[target].requirements:
        extensions = extensions_of(target, None if cuda in {"none", "unknown"} else cuda)
        names = map(canonicalize_name, (*RECIPES[target].requirements, *extensions))
        promised["target_packages"] = " ".join(names)
    groups = groups_of(target) if target in RECIPES else lockfile.GROUPS
    if pinned := _pins(promises.get("cell", ""), promises.get("lock", ""), groups):
        promised["packages"] = " ".join(pinned)
    return promised


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
        shipped, made = (_locks_in(place("images"), cell, groups, arch) for place in (data_path, state_path))
        for locks in (shipped, made, {**made, **shipped}):
            yield [locks[group] for group in groups if group in locks]


def _locks_in(images: Path, cell: Cell, groups: Sequence[Group], arch: HostArch) -> dict[Group, Lock]:
    try:
        return {lock.group: lock for lock in lockfile.read_locks(images / str(cell), groups, arch)}
    except (ConfigError, OSError):
        return {}
